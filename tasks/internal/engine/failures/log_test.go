package failures

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestFailuresOfManyTopics(t *testing.T) {
	var l Log
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	for i := range 3 * lines {
		l.Failed(fmt.Sprint("t", i), "down")
	}
	l.Died("t0", "down for good")
	l.Tell(log, "n", 0)
	if n := strings.Count(out.String(), "\n"); n != lines+1 || len(l.byTopic) != lines {
		t.Errorf("%d lines, %d topics kept", n, len(l.byTopic))
	}
	for _, want := range []string{
		`msg="attempts have failed" node=n topic=t0 failed=1 died=1 last_error="down for good"`,
		`msg="attempts of further topics have failed" node=n failed=200 died=0 last_error=down`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line has %q", want)
		}
	}
	l.Tell(log, "n", every)
	l.Tell(log, "n", 2*every)
	if n := strings.Count(out.String(), "\n"); n != lines+1 || len(l.byTopic) != 0 {
		t.Errorf("then %d lines, %d topics kept", n, len(l.byTopic))
	}
}
