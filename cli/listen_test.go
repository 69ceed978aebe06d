package cli

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// got is the answer of a GET.
func got(t *testing.T, c *http.Client, url string) (status int, body string) {
	t.Helper()
	a, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(text)
}

// The address for probes serves these alone, with the certificate and the tokens of the other one.
func TestHealthListen(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.save(a.server("server"))
	tokens := written(t, "tokens.yaml", lineOf("read", "text-of-read", "read"))
	for name, c := range map[string]struct {
		client  *http.Client
		args    []string
		metrics int
	}{
		"open":   {http.DefaultClient, nil, 200},
		"closed": {a.client(), []string{"--tls-cert", cert, "--tls-key", key, "--token-file", tokens}, 401},
	} {
		t.Run(name, func(t *testing.T) {
			urls, _, stop := startedAt(t, 2, nil, append([]string{"--data", t.TempDir(), "--health-listen", "127.0.0.1:0"}, c.args...)...)
			all, health := urls[0], urls[1]
			if all == health || strings.HasPrefix(health, "https://") != (name == "closed") {
				t.Errorf("serves on %s, and probes on %s", all, health)
			}
			for status := 0; status != 200; { // replay is soon over
				status, _ = got(t, c.client, health+"/readyz")
			}
			for path, want := range map[string]int{"/healthz": 200, "/metrics": c.metrics, "/v1/stats": 404, "/": 404, "/docs": 404, "/openapi.json": 404} {
				if status, body := got(t, c.client, health+path); status != want {
					t.Errorf("%s is answered %d, want %d: %s", path, status, want, body)
				}
			}
			if status, _ := got(t, c.client, all+"/healthz"); status != 200 {
				t.Errorf("at the other address: %d", status)
			}
			if code := stop(); code != exitOK {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// Probes are answered until everything else has ended.
func TestHealthListenInAStop(t *testing.T) {
	t.Run("Disk", func(t *testing.T) { testHealthInAStop(t, "--data", t.TempDir()) })
	t.Run("Redis", func(t *testing.T) {
		testHealthInAStop(t, "--redis", "redis://"+redistest.Start(t).Addr, "--node", "a")
	})
	t.Run("before Redis is there", func(t *testing.T) {
		urls, log, stop := startedAt(t, 2, nil, "--redis", "redis://127.0.0.1:1", "--node", "a", "--health-listen", "127.0.0.1:0")
		if status, body := got(t, http.DefaultClient, urls[1]+"/readyz"); status != 503 || !strings.Contains(body, `"starting":true`) {
			t.Errorf("/readyz is %d: %s", status, body)
		}
		over := askedOn(t, urls[1])
		if code := stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		<-over
		if strings.Contains(log.String(), "level=ERROR") {
			t.Errorf("the log has %s", log)
		}
	})
}

func testHealthInAStop(t *testing.T, args ...string) {
	said := make(parrot) // a delivery lasts until it is received
	config := configured(t, "topics:\n  slow: {delivery: {kind: parrot}}\n")
	urls, log, stop := startedAt(t, 2, []tasks.Way{said}, append(args, "--config", config, "--health-listen", "127.0.0.1:0")...)
	all, health := urls[0], urls[1]
	answered(t, http.StatusCreated, post(all+"/v1/tasks", `{"id":"a","topic":"slow","delay":"0s"}`))
	delivering := func() bool {
		status, body := got(t, http.DefaultClient, health+"/metrics")
		return status == 200 && strings.Contains(body, `lapse_tasks{state="delivering",topic="slow"} 1`)
	}
	ready := func() bool {
		status, _ := got(t, http.DefaultClient, health+"/readyz")
		return status == 200
	}
	for !delivering() || !ready() { // it takes and delivers tasks during replay, too
	}
	code := make(chan int)
	go func() { code <- stop() }()
	for stopping := false; !stopping; {
		status, body := got(t, http.DefaultClient, health+"/readyz")
		var ready struct {
			ShuttingDown bool `json:"shutting_down"`
		}
		if err := json.Unmarshal([]byte(body), &ready); err != nil {
			t.Fatal(err, body)
		}
		if stopping = ready.ShuttingDown; stopping != (status == http.StatusServiceUnavailable) {
			t.Errorf("/readyz is %d: %s", status, body)
		}
	}
	if c, err := net.Dial("tcp", strings.TrimPrefix(all, "http://")); err == nil {
		c.Close()
		t.Error("the other address still takes connections")
	}
	if status, body := got(t, http.DefaultClient, health+"/healthz"); status != 200 {
		t.Errorf("/healthz is %d: %s", status, body)
	}
	if !delivering() {
		t.Error("/metrics does not tell of the delivery")
	}
	over := askedOn(t, health)
	<-said
	if code := <-code; code != exitOK {
		t.Errorf("exit code %d", code)
	}
	<-over
	if strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("the log has %s", log)
	}
}

// askedOn asks the probes until the server does not answer any more.
func askedOn(t *testing.T, health string) (over <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
				a, err := http.Get(health + path)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, a.Body)
				if a.Body.Close(); a.StatusCode == http.StatusInternalServerError {
					t.Errorf("%s is answered %d", path, a.StatusCode)
				}
			}
		}
	}()
	return done
}

// An address for probes that cannot be bound is reported by the setting's name, before anything is
// touched.
func TestHealthListenRefused(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct {
		listen, health string
		more           []string
		code           int
		text           string
	}{
		"the same":            {"127.0.0.1:7480", "127.0.0.1:7480", nil, exitUsage, "health-listen: must not be the address of listen"},
		"the same, by name":   {"127.0.0.1:7480", "localhost:7480", nil, exitUsage, "health-listen: must not be the address of listen"},
		"one of its":          {"0.0.0.0:7480", "127.0.0.1:7480", []string{"--insecure"}, exitUsage, "health-listen: must not be the address of listen"},
		"no address":          {"127.0.0.1:0", "7490", nil, exitUsage, "health-listen: want host:port"},
		"reached by others":   {"127.0.0.1:0", "0.0.0.0:0", nil, exitUsage, "health-listen: 0.0.0.0:0 can be reached from other machines"},
		"taken":               {"127.0.0.1:0", taken.Addr().String(), nil, exitInUse, "address already in use; --health-listen names another one"},
		"not of this machine": {"127.0.0.1:0", "192.0.2.1:7490", []string{"--insecure"}, exitFailed, "lapse: health-listen: listen tcp 192.0.2.1:7490"},
		"listen is taken":     {taken.Addr().String(), "127.0.0.1:0", nil, exitInUse, "--listen names another one"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			data := filepath.Join(t.TempDir(), "data")
			code := run(t.Context(), append([]string{"serve", "--data", data, "--listen", c.listen, "--health-listen", c.health}, c.more...), streams{&out, &errs})
			if code != c.code || !strings.Contains(errs.String(), c.text) {
				t.Errorf("exit code %d, want %d and %q: %s", code, c.code, c.text, &errs)
			}
			if _, err := os.Stat(data); err == nil || out.Len() > 0 {
				t.Errorf("something was begun: %s", &out)
			}
			t.Logf("%s", &errs)
		})
	}
	// With tokens, or with --insecure, it may listen beyond this machine. A port of 0 is not that
	// of the other address.
	for _, s := range []settings{
		{nodeSettings: nodeSettings{HealthListen: "0.0.0.0:0"}, accessSettings: accessSettings{TokenFile: "tokens.yaml"}},
		{nodeSettings: nodeSettings{HealthListen: "0.0.0.0:0", Insecure: true}},
		{nodeSettings: nodeSettings{HealthListen: "127.0.0.1:0"}},
	} {
		s.Listen, s.LogFormat, s.HandoverTimeout = "127.0.0.1:0", "text", time.Second
		bad := &faults{}
		if _, health := s.addresses(bad); health == nil || bad.err() != nil {
			t.Errorf("%s: %v", s.HealthListen, bad.err())
		}
	}
}
