package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestMisspeltVariables(t *testing.T) {
	for variable, warns := range map[string]bool{
		"LAPSE_MAX_PENDIN=1":                      true,
		"LAPSE_MAX_PENDING=1":                     false,
		"LAPSE_TOKEN=secret":                      false,
		"LAPSE_TASK_ID=x":                         false, // within reserve --exec
		"LAPSE_PORT=tcp://10.0.0.1:7480":          false,
		"LAPSE_PORT_7480_TCP_ADDR=10.0.0.1":       false,
		"LAPSE_SERVICE_HOST=10.0.0.1":             false,
		"LAPSE_ORDERS_SERVICE_PORT_HTTP=7480":     false,
		"MAX_PENDIN=1":                            false,
		"LAPSE_REDIS_URL=redis://:secret@x:6379/": true,
	} {
		var log bytes.Buffer
		warnOfVariables(commands(&serve{}), []string{"HOME=/", variable}, slog.New(slog.NewTextHandler(&log, nil)))
		if warns != (log.Len() > 0) || strings.Contains(log.String(), "secret") {
			t.Errorf("%s: %q", variable, &log)
		}
	}
}
