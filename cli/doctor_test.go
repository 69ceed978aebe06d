package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/internal/checkup"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// diagnosed runs lapse doctor, and returns its findings by subject.
func diagnosed(t *testing.T, args ...string) (code int, found map[string]checkup.Finding, errs string) {
	t.Helper()
	var out, e screen
	code = run(t.Context(), append([]string{"doctor", "--json", "--listen", "127.0.0.1:0"}, args...), streams{&out, &e})
	found = map[string]checkup.Finding{}
	for line := range strings.Lines(out.String()) {
		var f checkup.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		found[f.Subject] = f
	}
	return code, found, e.String()
}

// On a machine that is fit, doctor ends with 0, and leaves nothing behind.
func TestDoctor(t *testing.T) {
	server := redistest.Start(t, "appendonly yes", "maxmemory 1gb")
	code, found, errs := diagnosed(t, "--redis", "redis://"+server.Addr, "--node", "a", "--spool", t.TempDir())
	if code != exitOK {
		t.Fatalf("exit code %d: %s, %v", code, errs, found)
	}
	for _, subject := range []string{"settings", "redis connection", "redis version", "redis eviction", "redis memory", "redis persistence", "redis latency", "redis clock", "redis commands"} {
		if f, ok := found[subject]; !ok || f.Verdict != checkup.OK && f.Verdict != checkup.Warn || f.Found == "" {
			t.Errorf("%s: %+v", subject, f)
		}
	}
	for _, subject := range []string{"open files", "memory", "clock", "listen", "spool directory", "spool disk", "spool sync"} {
		if f, ok := found[subject]; !ok || f.Found == "" {
			t.Errorf("%s: %+v", subject, f)
		}
	}
	if n := server.Do("dbsize"); n != int64(0) {
		t.Errorf("%v keys are left", n)
	}
	var out, e screen
	if code := run(t.Context(), []string{"doctor", "--listen", "127.0.0.1:0", "--data", t.TempDir()}, streams{&out, &e}); code != exitOK ||
		!strings.HasPrefix(out.String(), "ok ") || !strings.Contains(out.String(), " looked at, 0 failures, ") {
		t.Errorf("exit code %d: %s%s", code, &out, &e)
	}
}

// Doctor compares the clock of the machine with those of the nodes that run.
func TestDoctorComparesClocks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	url, _ := started(t, "--redis", server.URL(), "--node", "here", "--failover-after", "1s", "--redis-shards", "1")
	answered(t, http.StatusOK, get(url+"/readyz"))
	for _, node := range []string{"far", "near", "dead"} {
		server.Do("hset", "lapse:nodes", node, `{"incarnation":"x","generation":1,"counts":[1],"failover_after":1000}`)
		server.Do("hset", "lapse:status:{lapse:nodes}", node, `{"clock":{"ahead_ns":250000000}}`)
	}
	server.Do("hset", "lapse:status:{lapse:nodes}", "near", `{"clock":{"ahead_ns":250000000,"error_ns":200000000}}`)
	done := make(chan struct{})
	defer func() { <-done }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				server.Do("incr", "lapse:heartbeat:{lapse:nodes}:far")
				server.Do("incr", "lapse:heartbeat:{lapse:nodes}:near")
			case <-ctx.Done():
				return
			}
		}
	}()
	const subject = "clock of node "
	var found map[string]checkup.Finding
	for { // the first status of a node comes with its second heartbeat
		if _, found, _ = diagnosed(t, "--redis", server.URL(), "--node", "a"); found[subject+"here"].Found != "" {
			break
		}
	}
	for node, want := range map[string]checkup.Verdict{"here": checkup.OK, "near": checkup.OK, "far": checkup.Warn} {
		if f := found[subject+node]; f.Verdict != want || f.Found == "" {
			t.Errorf("%s: %+v", node, f)
		}
	}
	if f, ok := found[subject+"dead"]; ok {
		t.Errorf("of a node that sends no heartbeat: %+v", f)
	}
}

// What would keep a server from starting, or lose its tasks, ends doctor with 1, and each finding
// says what to do.
func TestDoctorFails(t *testing.T) {
	evicting := redistest.Start(t, "maxmemory-policy allkeys-lru")
	locked := redistest.Start(t)
	locked.Do("acl", "setuser", "lapse", "on", ">secret", "~lapse:*", "&*", "+@all", "-hscan", "-subscribe")
	for _, c := range []struct {
		args     []string
		subject  string
		found    string
		do       string
		settings bool // whether the settings are valid
	}{
		{[]string{"--redis", "redis://127.0.0.1:1", "--node", "a"}, "redis connection", "refused", "check the URL", true},
		{[]string{"--redis", "redis://" + evicting.Addr, "--node", "a"}, "redis eviction", "allkeys-lru", "noeviction", true},
		{[]string{"--redis", "redis://lapse:secret@" + locked.Addr, "--node", "a"}, "redis commands", "may not call", "+hscan +subscribe", true},
		{[]string{"--redis", "redis://lapse:wrong@" + locked.Addr, "--node", "a"}, "redis connection", "WRONGPASS", "user and password", true},
		{[]string{"--redis", "redis://" + locked.Addr, "--node", "a", "--redis-wait-replicas", "1"}, "redis replicas", "0 of 1", "redis-wait-replicas", true},
		{[]string{"--redis", "redis://" + redistest.Start(t, "cluster-enabled yes").Addr, "--node", "a"}, "redis cluster", "Redis Cluster", "redis+cluster://", true},
		{[]string{"--max-pending", "0"}, "settings", "max-pending", "--help", false},
		{[]string{"--data", "/dev/null/x"}, "data directory", "not a directory", "--data", true},
		{[]string{"--token-file", "missing.yaml"}, "token-file", "no such file", "--token-file", false},
		{[]string{"--tls-cert", "a.pem", "--tls-key", "b.pem"}, "certificate", "no such file", "--tls-cert", false},
		{[]string{"--redis-listen", "192.0.2.1:0", "--insecure"}, "redis-listen", "192.0.2.1", "--redis-listen", true},
		{[]string{"--redis-listen", "unix:///dev/null/x"}, "redis-listen", "not a directory", "--redis-listen", true},
		{[]string{"--health-listen", "192.0.2.1:0", "--insecure"}, "health-listen", "192.0.2.1", "--health-listen", true},
	} {
		code, found, errs := diagnosed(t, c.args...)
		f := found[c.subject]
		if code != exitFailed || f.Verdict != checkup.Fail || !strings.Contains(f.Found, c.found) || !strings.Contains(f.Do, c.do) || !strings.Contains(errs, "not fit for this server") {
			t.Errorf("%v: exit code %d, %+v, %s", c.args, code, f, errs)
		}
		if valid := found["settings"].Verdict == checkup.OK; valid != c.settings {
			t.Errorf("%v: settings %+v", c.args, found["settings"])
		}
	}
}

// The settings come from where those of the server come from.
func TestDoctorReadsConfig(t *testing.T) {
	t.Setenv("LAPSE_MAX_CONNECTIONS", "17")
	_, found, _ := diagnosed(t, "--config", configured(t, "max_bytes: 1048576\n"), "--data", t.TempDir())
	if f := found["open files"]; !strings.Contains(f.Found, "2065 are needed") {
		t.Errorf("got %+v", f)
	}
	if f := found["memory"]; !strings.Contains(f.Found, "tasks may take 1 MiB") {
		t.Errorf("got %+v", f)
	}
}
