package cli

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
)

// lapse dev needs nothing and leaves nothing behind, whatever the environment has for lapse serve,
// and delivers what comes through either door.
func TestDev(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("LAPSE_DATA", "elsewhere")
	t.Setenv("LAPSE_TOKEN_FILE", "missing.yaml")
	urls, log, stop := startedLine(t, 2, nil, "dev")
	post := func(path, body string) string {
		t.Helper()
		resp, err := http.Post(urls[0]+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	post("/v1/tasks", `{"topic":"hello","delay":"1ms","payload":"world"}`)
	if got := post("/v1/topics/hello/reserve", `{"wait":"30s"}`); !strings.Contains(got, `"payload":"world"`) {
		t.Errorf("delivered: %s", got)
	}
	c := dialRedis(t, "tcp", strings.TrimPrefix(urls[1], "redis://"))
	if got := c.ask("SET hello world PX 60000"); got != "+OK" {
		t.Errorf("SET is answered %s", got)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if log.Len() > 0 {
		t.Errorf("the log is not empty: %s", log)
	}
	if left, err := os.ReadDir("."); len(left) > 0 || err != nil {
		t.Errorf("it leaves %v behind, %v", left, err)
	}
}

// A second one beside the first takes other ports, and says so. A port that was asked for is not
// replaced.
func TestDevBesideAnother(t *testing.T) {
	first, _, _ := startedLine(t, 2, nil, "dev")
	second, _, _ := startedLine(t, 2, nil, "dev")
	if first[0] == second[0] || first[1] == second[1] {
		t.Errorf("%v and %v", first, second)
	}
	for i, flag := range []string{"--listen", "--redis-listen"} {
		_, taken, _ := strings.Cut(first[i], "://")
		var out, errs bytes.Buffer
		if code := run(t.Context(), []string{"dev", flag, taken}, streams{&out, &errs}); code != exitInUse || !strings.Contains(errs.String(), "already in use") {
			t.Errorf("%s: exit code %d: %s", flag, code, &errs)
		}
	}
	s := &serve{orFree: []string{"listen"}}
	if got := s.since("listen", "127.0.0.1:1", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2}); got != ", since 127.0.0.1:1 is taken" {
		t.Error(got)
	}
	if got := s.since("redis-listen", "127.0.0.1:1", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2}); got != "" {
		t.Error(got)
	}
}

// What it has in a directory is there again.
func TestDevKeeps(t *testing.T) {
	data := t.TempDir()
	line := []string{"dev", "--listen", "127.0.0.1:0", "--redis-listen", "127.0.0.1:0", "--data", data}
	urls, _, stop := startedLine(t, 2, nil, line...)
	resp, err := http.Post(urls[0]+"/v1/tasks", "application/json", strings.NewReader(`{"id":"a","topic":"x","delay":"1h"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	stop()
	urls, _, _ = startedLine(t, 2, nil, line...)
	if status, text := got(t, http.DefaultClient, urls[0]+"/v1/tasks/a"); status != http.StatusOK {
		t.Errorf("%d: %s", status, text)
	}
}

// It is not for other machines, unless it is told so.
func TestDevIsGuarded(t *testing.T) {
	for _, flag := range []string{"--listen", "--redis-listen", "--health-listen"} {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"dev", flag, "0.0.0.0:0"}, streams{&out, &errs})
		if text := errs.String(); code != exitUsage || !strings.Contains(text, flag[2:]+": 0.0.0.0:0 can be reached from other machines") ||
			!strings.Contains(text, "lapse serve a --token-file") {
			t.Errorf("%s: exit code %d: %s", flag, code, text)
		}
	}
	startedLine(t, 2, nil, "dev", "--listen", "0.0.0.0:0", "--redis-listen", "127.0.0.1:0", "--insecure")
}
