package redisledger

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// Behind a proxy that refuses a command that the ledger needs, Adopt names the command and ends,
// though it would wait for a Redis that is down.
func TestRefusedCommands(t *testing.T) {
	server := redistest.Start(t)
	for _, c := range []struct {
		how      redistest.Refusal
		commands []string
		named    string
	}{
		{redistest.Unknown, []string{"INFO"}, "INFO"},
		{redistest.Unknown, []string{"HELLO", "INFO"}, "INFO"},
		{redistest.Unknown, []string{"EVALSHA"}, "EVALSHA"},
		{redistest.Unknown, []string{"EVAL"}, "EVAL"},
		{redistest.Unknown, []string{"SUBSCRIBE"}, "SUBSCRIBE"},
		{"unsupported command", []string{"INFO"}, "INFO"},
	} {
		var log lines
		l, err := Open(Options{
			URL: redistest.Refusing(t, server.Addr, c.how, c.commands...), Node: "a", Log: log.logger(),
			Wait: func(error) {},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Adopt(t.Context())
		if !errors.Is(err, ErrCommands) || !strings.Contains(err.Error(), c.named) {
			t.Errorf("%v: Adopt: %v", c, err)
		}
		if !log.has("level=ERROR", c.named) {
			t.Errorf("%v: the log does not say it: %s", c, &log)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := server.Do("dbsize"); n != int64(0) {
		t.Errorf("%v keys were written", n)
	}
}

// Adopt waits for a Redis that is down, loading or may not write.
func TestOutagesAreNoRefusals(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"LOADING Redis is loading the dataset in memory", "CLUSTERDOWN The cluster is down",
		"READONLY You can't write against a read only replica.", "MASTERDOWN Link with MASTER is down",
		"ERR max number of clients reached", "BUSY Redis is busy running a script"} {
		server := redistest.Start(t)
		var log lines
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		l, err := Open(Options{
			URL: redistest.Refusing(t, server.Addr, redistest.Refusal(text), "INFO"), Node: "a", Log: log.logger(),
			Wait: func(error) {
				if tries++; tries == manyHangUps+1 {
					cancel()
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = l.Adopt(ctx); errors.Is(err, ErrCommands) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Adopt: %v", text, err)
		}
		if log.has("level=ERROR") {
			t.Errorf("%s: %s", text, &log)
		}
		_ = l.Close()
	}
}

// A proxy that closes connections instead differs from a Redis that is shut down only in that it
// answers PING: the log and readiness say so, and Adopt goes on waiting.
func TestProxyThatHangsUp(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, commands := range [][]string{{"INFO"}, {"HELLO"}} {
		var log lines
		l, err := Open(Options{
			URL: redistest.Refusing(t, server.Addr, redistest.HangUp, commands...), Node: "a", Log: log.logger(),
			Wait: func(error) {},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := l.Adopt(ctx)
			ended <- err
		}()
		eventually(t, "readiness says it", func() bool {
			w := l.Health().Waiting
			return len(w) == 1 && w[0].What == waitsForServer && strings.Contains(w[0].Detail, "proxy")
		})
		if !log.has("level=ERROR", "closes the connection") {
			t.Errorf("the log does not say it: %s", &log)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Adopt: %v", err)
		}
		_ = l.Close()
	}
	// A Redis that is down is not taken for such a proxy.
	proxy := redistest.NewProxy(t, server.Addr)
	proxy.Sever(redistest.Reset)
	var log lines
	l, err := Open(Options{URL: proxy.URL(), Node: "a", Log: log.logger(), Wait: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _ = l.Adopt(ctx)
	if w := l.Health().Waiting; len(w) > 0 || log.has("level=ERROR") {
		t.Errorf("%v, %s", w, &log)
	}
	_ = l.Close()
}

// Adopt does not wait for a database that Redis does not have.
func TestNoSuchDatabase(t *testing.T) {
	l, err := Open(Options{URL: redistest.Start(t).URL() + "/99", Node: "a", Log: quiet(), Wait: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.Adopt(t.Context()); err == nil || !strings.Contains(err.Error(), "out of range") {
		t.Errorf("Adopt: %v", err)
	}
	_ = l.Close()
}
