//go:build fault

package crash

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-json"
)

// TestRedisAbsent: a server that starts before Redis reports that, refuses what it cannot store,
// and goes on by itself when Redis appears. Killed, it adopts its own shards at once. While it
// lives, no other process can have its name.
func TestRedisAbsent(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	s.redis.Kill()
	r := s.start()
	for range 20 {
		var ready struct {
			Starting bool
			Ledger   struct{ Condition string }
		}
		status, data, err := r.exchange(http.MethodGet, "/readyz", nil)
		if err == nil {
			err = json.Unmarshal(data, &ready)
		}
		if status != http.StatusServiceUnavailable || err != nil || !ready.Starting || !strings.Contains(ready.Ledger.Condition, "refused") {
			t.Fatalf("/readyz without Redis: %d, %v, %+v", status, err, ready)
		}
		began := time.Now()
		resp, err := r.http.Post(r.base+"/v1/tasks", "application/json", strings.NewReader(`{"topic":"crash","delay":"1h"}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if took := time.Since(began); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || took > answerWithin+slack {
			t.Fatalf("a task without Redis was answered %d, Retry-After %q, after %v", resp.StatusCode, resp.Header.Get("Retry-After"), took)
		}
		<-time.After(50 * time.Millisecond)
	}
	s.redis.Start()
	t.Logf("ready %v after Redis", r.ready(t).Round(time.Millisecond))
	if status, _, err := r.call(http.MethodPost, "/v1/tasks", []byte(`{"id":"kept","topic":"crash","delay":"1h"}`), nil); outcome(status, err) != Done {
		t.Fatalf("answered %d, %v", status, err)
	}

	second := command(append([]string{"serve", "--listen", "127.0.0.1:0"}, s.where()...)...)
	out, err := second.CombinedOutput()
	if code := second.ProcessState.ExitCode(); err == nil || code != 3 {
		t.Errorf("a second server of the same name ended with %d, want 3:\n%s", code, out)
	}
	if holder := fmt.Sprintf("process %d", r.Cmd.Process.Pid); !bytes.Contains(out, []byte(holder)) || !bytes.Contains(out, []byte("--node")) {
		t.Errorf("it does not name %s and --node:\n%s", holder, out)
	}
	t.Logf("%s", out)

	s.kill()
	if !bytes.Contains(r.stderr.Bytes(), []byte("waiting for Redis")) {
		t.Errorf("the log does not say what it waited for:\n%s", tail(r.stderr.Bytes()))
	}
	began := time.Now()
	r = s.start()
	r.ready(t)
	took := time.Since(began)
	t.Logf("ready %v after the start that followed kill -9", took.Round(time.Millisecond))
	if took > 3*time.Second {
		t.Errorf("it took %v to adopt what the killed process had", took)
	}
	if status, _, err := r.call(http.MethodGet, "/v1/tasks/kept", nil, nil); outcome(status, err) != Done {
		t.Errorf("the task is gone: %d, %v", status, err)
	}
}

// TestRedisFull fills Redis until the server refuses, see TestDiskFull.
func TestRedisFull(t *testing.T) {
	t.Parallel()
	s := onRedis(t, "maxmemory 48mb", "maxmemory-policy noeviction")
	s.start().ready(t)
	testFull(t, s, 10*time.Second)
}
