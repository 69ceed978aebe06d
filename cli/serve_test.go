package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/lapsehq/lapse/tasks"
)

// started runs a server in this process. It returns the address and a function
// that stops it and returns its exit code.
func started(t *testing.T, args ...string) (url string, stop func() int) {
	t.Helper()
	return startedWith(t, nil, args...)
}

// startedWith runs a server with additional ways of delivery.
func startedWith(t *testing.T, ways []tasks.Way, args ...string) (url string, stop func() int) {
	t.Helper()
	urls, _, stop := startedAt(t, 1, ways, args...)
	return urls[0], stop
}

// startedAt is startedWith for a server that announces so many addresses. The log is complete once
// stop has returned. A disk that is slow for a moment does not decide on what the server answers.
func startedAt(t *testing.T, addresses int, ways []tasks.Way, args ...string) (urls []string, log *bytes.Buffer, stop func() int) {
	t.Helper()
	return startedLine(t, addresses, ways, append([]string{"serve", "--listen", "127.0.0.1:0", "--answer-within", "1m"}, args...)...)
}

// startedLine is startedAt for a whole command line.
func startedLine(t *testing.T, addresses int, ways []tasks.Way, line ...string) (urls []string, log *bytes.Buffer, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	var errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		defer write.Close()
		code <- run(ctx, line, streams{write, &errs}, ways...)
	}()
	lines := bufio.NewScanner(read)
	for len(urls) < addresses && lines.Scan() {
		if url := regexp.MustCompile(`(?:http|redis)s?://[0-9.:]+`).FindString(lines.Text()); url != "" {
			urls = append(urls, url)
		}
	}
	if len(urls) < addresses {
		t.Fatalf("exit code %d: %s", <-code, &errs)
	}
	go func() { _, _ = io.Copy(io.Discard, read) }()
	stop = sync.OnceValue(func() int {
		cancel()
		got := <-code
		if got != exitOK {
			t.Log(errs.String())
		}
		return got
	})
	t.Cleanup(func() { stop() })
	return urls, &errs, stop
}

func TestServe(t *testing.T) {
	data := t.TempDir()
	url, stop := started(t, "--data", data)
	resp, err := http.Post(url+"/v1/tasks", "application/json", strings.NewReader(`{"id":"a","topic":"x","delay":"1h"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Errorf("schedule answered %d", resp.StatusCode)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	// Accepted tasks are there again.
	url, stop = started(t, "--data", data)
	resp, err = http.Get(url + "/v1/tasks/a")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the task from before: %d", resp.StatusCode)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestServeRefused(t *testing.T) {
	data := t.TempDir()
	url, _ := started(t, "--data", data)
	for _, test := range []struct {
		name string
		args []string
		code int
		text string
	}{
		{"the address is taken", []string{"--listen", strings.TrimPrefix(url, "http://"), "--data", t.TempDir()}, exitInUse, "address already in use"},
		{"the data directory is taken", []string{"--listen", "127.0.0.1:0", "--data", data}, exitInUse, data},
		{"the data directory is a file", []string{"--listen", "127.0.0.1:0", "--data", "serve_test.go"}, exitFailed, "serve_test.go"},
		{"out of range", []string{"--listen", "127.0.0.1:0", "--data", t.TempDir(), "--max-payload", "99999999999", "--sweep-every", "1h"}, exitUsage, "sweep"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := run(t.Context(), append([]string{"serve"}, test.args...), streams{&out, &errs})
			if code != test.code || !strings.Contains(errs.String(), test.text) {
				t.Errorf("exit code %d, want %d: %s", code, test.code, &errs)
			}
			if test.code == exitInUse && strings.Count(errs.String(), "\n") != 1 {
				t.Errorf("want one line: %s", &errs)
			}
			if out.Len() > 0 {
				t.Errorf("announced: %s", &out)
			}
			t.Logf("%s", &errs)
		})
	}
}

// A server whose log nothing reads answers, says how much of its log is missing, and ends.
func TestNothingReadsTheLog(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, announce := io.Pipe()
	unread, log := io.Pipe()
	defer unread.Close()
	code := make(chan int, 1)
	go func() {
		defer announce.Close()
		code <- run(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--log-level", "debug"}, streams{announce, log})
	}()
	lines := bufio.NewScanner(out)
	lines.Scan()
	url := regexp.MustCompile(`http://[0-9.:]+`).FindString(lines.Text())
	go func() { _, _ = io.Copy(io.Discard, out) }()
	payload := strings.Repeat("x", 1000)
	for i := range 200 {
		task := fmt.Sprintf(`{"id":"%d","topic":"x","delay":"1h","payload":%q}`, i, payload)
		resp, err := http.Post(url+"/v1/tasks", "application/json", strings.NewReader(task))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Fatalf("schedule answered %d", resp.StatusCode)
		}
	}
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	if resp.Body.Close(); !strings.Contains(string(text), "\nlapse_log_dropped_total ") {
		t.Error("no metric tells of lines that were dropped")
	}
	cancel()
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d", got)
	}
}
