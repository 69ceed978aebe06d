package cli

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/lapsehq/lapse/internal/stamp"
	"github.com/lapsehq/lapse/tracing/otlp"
)

// logSettings are about the log.
type logSettings struct {
	LogLevel  slog.Level `default:"info" help:"debug, info, warn or error."`
	LogFormat string     `default:"text" help:"text or json."`
}

func (s *logSettings) logger(w io.Writer) *slog.Logger {
	if s.LogFormat == "json" {
		return jsonLogger(w, s.LogLevel)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: s.LogLevel}))
}

// jsonLogger writes a JSON object for each line. Durations are text with a unit, as in the other
// format: slog would write bare nanoseconds.
func jsonLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}}))
}

// announce says where the server is and how to try it. With a log of JSON it writes the same as one
// object, at any level of the log, so that a reader of both streams finds JSON alone.
func (s *serve) announce(w io.Writer, bound *listeners) {
	scheme, auth := "http://", ""
	if s.TLSCert != "" {
		scheme = "https://"
	}
	url, health := scheme+reachable(bound.all.Addr()), ""
	if bound.health != nil {
		health = scheme + reachable(bound.health.Addr())
	}
	redis := ""
	if bound.redis != nil {
		redis = s.redisURL(bound.redis.Addr())
	}
	if s.LogFormat == "json" {
		facts := []any{"node", s.Node, "url", url, "storage", s.storage()}
		if health != "" {
			facts = append(facts, "health_url", health)
		}
		if redis != "" {
			facts = append(facts, "redis_url", redis)
		}
		jsonLogger(w, slog.LevelInfo).Info("lapse serves", facts...)
		return
	}
	if s.TokenFile != "" {
		auth = " -H \"Authorization: Bearer $TOKEN\""
	}
	fmt.Fprintf(w, "lapse serves on %s%s\n", url, s.since("listen", s.Listen, bound.all.Addr()))
	if health != "" {
		fmt.Fprintf(w, "health and metrics are served on %s\n", health)
	}
	if redis != "" {
		fmt.Fprintf(w, "clients of Redis are served on %s%s\n", redis, s.since("redis-listen", s.RedisListen, bound.redis.Addr()))
	}
	fmt.Fprintf(w, "tasks are kept %s\n", s.storage())
	fmt.Fprintf(w, "try: curl %s/v1/tasks%s --json '{\"topic\":\"hello\",\"delay\":\"3s\",\"payload\":\"world\"}'\n", url, auth)
	if s.trial {
		announceTrial(w, url, redis)
	}
}

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
