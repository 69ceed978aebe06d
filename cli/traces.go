package cli

import (
	"log/slog"

	"github.com/lapsehq/lapse/internal/stamp"
	"github.com/lapsehq/lapse/tracing/otlp"
)

// traces returns where spans go, as the environment says; nil if there is no such place. Wrong
// variables do not keep the server from starting: they often come from the platform that runs it.
func (s *serve) traces(log *slog.Logger) *otlp.Provider {
	version, _ := stamp.Read()
	p, err := otlp.Open(otlp.Config{Node: s.Node, Version: version, Log: log})
	if err != nil {
		log.Error("there are no traces", "error", err)
	}
	return p
}
