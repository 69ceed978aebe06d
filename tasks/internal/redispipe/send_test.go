package redispipe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks/internal/redispipe"
)

// The client looks for a server that was away once a second, also when it is closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func sets(n, size int) []redispipe.Command {
	all := make([]redispipe.Command, n)
	for i := range all {
		all[i] = redispipe.Command{Args: []any{"set", fmt.Sprint("k", i), make([]byte, size)}, Bytes: size}
	}
	return all
}

func want(t *testing.T, c []redispipe.Command, from, to int, err error) {
	t.Helper()
	for i := from; i < to; i++ {
		if !errors.Is(c[i].Err, err) || err == nil && c[i].Reply == nil {
			t.Errorf("command %d: %v, %v; want %v", i, c[i].Reply, c[i].Err, err)
		}
	}
}

// Each command has its own outcome, also where many pipelines are needed.
func TestOutcomes(t *testing.T) {
	server := redistest.Start(t)
	client, err := redisledger.Connect(server.URL(), 4)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := sets(50, 200<<10)
	c[7].Args = []any{"lpush", "k3", "x"}
	redispipe.Send(t.Context(), client, c)
	want(t, c, 0, 7, nil)
	want(t, c, 8, 50, nil)
	if err := c[7].Err; err == nil || errors.Is(err, redispipe.ErrUnreachable) {
		t.Errorf("a refusal: %v", err)
	}
	if n := server.Do("dbsize").(int64); n != 49 {
		t.Errorf("%d keys", n)
	}
}

// A command that was executed and not answered does not count as done, and nothing is sent after
// it.
func TestAnswersAreLost(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	client, err := redisledger.Connect(proxy.URL(), 4)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := sets(1, 10)
	redispipe.Send(t.Context(), client, c)
	want(t, c, 0, 1, nil)
	proxy.SetDeaf(true)
	c = sets(20, 200<<10)
	began := time.Now()
	redispipe.Send(t.Context(), client, c)
	want(t, c, 0, 20, redispipe.ErrUnreachable)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if n := server.Do("dbsize").(int64); n == 0 || n > 6 {
		t.Errorf("%d keys; those of the first pipeline should be there", n)
	}
	proxy.SetDeaf(false)
	redispipe.Send(t.Context(), client, c)
	want(t, c, 0, 20, nil)
}

// Send returns at the end of the context, though the client would still wait.
func TestContextEnds(t *testing.T) {
	server := redistest.Start(t)
	client, err := redisledger.Connect(server.URL(), 4)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	c := sets(3, 10)
	redispipe.Send(ctx, client, c)
	want(t, c, 0, 3, redispipe.ErrUnreachable)
}
