package cli

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/tasks"
)

// parsed parses a command line, with a config file if text is not empty.
func parsed(t *testing.T, text string, args ...string) (settings, *configFile, *faults, error) {
	t.Helper()
	if text != "" {
		path := filepath.Join(t.TempDir(), "lapse.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	bad := &faults{}
	server := &serve{file: configFile{faults: bad}}
	_, err := parse(append([]string{"serve"}, args...), streams{io.Discard, io.Discard}, server, bad)
	return server.settings, &server.file, bad, err
}

// everyField compares the embedded structs of settings, too.
var everyField = cmp.Exporter(func(reflect.Type) bool { return true })

func TestDefaults(t *testing.T) {
	got, _, bad, err := parsed(t, "")
	if err != nil || bad.err() != nil {
		t.Fatal(err, bad.err())
	}
	want := settings{
		nodeSettings: nodeSettings{Listen: "127.0.0.1:7480"},
		limitSettings: limitSettings{MaxPending: 20_000_000, MaxBytes: 8 << 30, MaxInFlight: 100_000, MaxDeliveries: 4096, MaxPayload: 64 << 10,
			MaxBody: 16 << 20, MaxAnswers: 64 << 20, MaxConnections: 10_000, MaxWaiting: 10_000, MaxWaitingPerToken: 5000},
		respSettings: respSettings{RespMaxConnections: 10_000, RespMaxCommand: 16 << 20, RespMaxValue: 1 << 20, RespMaxPersistent: 1_000_000, RespPastExpiry: "del", RespNotify: "Ex"},
		redisSettings: redisSettings{RedisPrefix: "lapse:", RedisShards: 16, RedisWaitTimeout: 500 * time.Millisecond, FailoverAfter: 10 * time.Second,
			OnOutage: "deliver", HandoverTimeout: 30 * time.Second},
		sweepSettings: sweepSettings{SweepEvery: time.Second, SweepBacklog: 100_000, SweepMaxConcurrency: 1024},
		timeSettings:  timeSettings{ShutdownGrace: 10 * time.Second, AnswerWithin: 2 * time.Second},
		logSettings:   logSettings{LogLevel: slog.LevelInfo, LogFormat: "text"},
	}
	if diff := cmp.Diff(want, got, everyField); diff != "" {
		t.Error(diff)
	}
	if got.addresses(bad); bad.err() != nil {
		t.Error(bad.err())
	}
	if got.Data != "./lapse-data" {
		t.Errorf("tasks are kept in %q", got.Data)
	}
}

// A flag wins over the environment, which wins over the file.
func TestPrecedence(t *testing.T) {
	t.Setenv("LAPSE_MAX_PENDING", "200")
	t.Setenv("LAPSE_MAX_PAYLOAD", "2000")
	got, _, bad, err := parsed(t, `
max_pending: 30
max-payload: 3000
max_in_flight: 33
sweep: {every: 3s}
log: {level: debug}
`, "--max-pending", "1")
	if err != nil || bad.err() != nil {
		t.Fatal(err, bad.err())
	}
	if got.MaxPending != 1 {
		t.Errorf("flag, environment and file: got %d, want the flag's", got.MaxPending)
	}
	if got.MaxPayload != 2000 {
		t.Errorf("environment and file: got %d, want the environment's", got.MaxPayload)
	}
	if got.MaxInFlight != 33 || got.SweepEvery != 3*time.Second || got.LogLevel != slog.LevelDebug {
		t.Errorf("file alone: got %d, %s, %s", got.MaxInFlight, got.SweepEvery, got.LogLevel)
	}
	if got.AnswerWithin != 2*time.Second {
		t.Errorf("not set anywhere: got %s, want the default", got.AnswerWithin)
	}
}

// Times may be several, from wherever they come; commas are part of them.
func TestTimes(t *testing.T) {
	const file = "sweep: {at: ['0,30 3 * * *', 0 4 * * *]}"
	check := func(what, text string, want []string, args ...string) {
		t.Helper()
		got, _, bad, err := parsed(t, text, args...)
		if err != nil || bad.err() != nil || got.scheduler(nil, nil).Validate() != nil {
			t.Fatal(what, err, bad.err(), got.scheduler(nil, nil).Validate())
		}
		if diff := cmp.Diff(want, got.SweepAt); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	check("none", "", nil)
	check("file, a list", file, []string{"0,30 3 * * *", "0 4 * * *"})
	check("file, one", "sweep: {at: 0 3 * * *}", []string{"0 3 * * *"})
	check("flags over file", file, []string{"1,2 1 * * *", "TZ=Asia/Tokyo 2 2 * * *"}, "--sweep-at", "1,2 1 * * *", "--sweep-at", "TZ=Asia/Tokyo 2 2 * * *")
	t.Setenv("LAPSE_SWEEP_AT", "5,6 5 * * *;6 6 * * *")
	check("environment over file", file, []string{"5,6 5 * * *", "6 6 * * *"})
	check("flag over all", file, []string{"1 1 * * *"}, "--sweep-at", "1 1 * * *")
}

// A bad time is named with its position, beside the other faults.
func TestBadTimes(t *testing.T) {
	got, _, bad, err := parsed(t, "sweep: {at: ['0 3 * * *', soon], backlog: -1, max_concurrency: 5}\nmax_pending: [1]")
	if err != nil {
		t.Fatal(err)
	}
	bad.include(got.scheduler(nil, nil).Validate())
	for _, fault := range []string{`sweep.at[1] "soon"`, "sweep.backlog", "sweep.max_concurrency", "max-pending: a list"} {
		if !strings.Contains(bad.err().Error(), fault) {
			t.Errorf("%s is not reported in %v", fault, bad.err())
		}
	}
}

func TestConfigFromEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lapse.yaml")
	if err := os.WriteFile(path, []byte("max_pending: 30"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LAPSE_CONFIG", path)
	got, _, _, err := parsed(t, "")
	if err != nil || got.MaxPending != 30 {
		t.Errorf("got %d, %v", got.MaxPending, err)
	}
}

func TestTopicsInFile(t *testing.T) {
	_, file, bad, err := parsed(t, `
topics:
  order.unpaid:
    retry: {max_attempts: 5, min_backoff: 2s, max_backoff: 1m}
    lease: 45s
    concurrency: 8
    count_crashes: true
    paused: true
  coupon: {}
`)
	if err != nil || bad.err() != nil {
		t.Fatal(err, bad.err())
	}
	want := map[string]tasks.TopicSettings{
		"order.unpaid": {
			Retry: tasks.Retry{MaxAttempts: 5, MinBackoff: 2 * time.Second, MaxBackoff: time.Minute},
			Lease: 45 * time.Second, Concurrency: 8, CountCrashes: true, Paused: true,
		},
		"coupon": {},
	}
	if diff := cmp.Diff(want, file.topics); diff != "" {
		t.Error(diff)
	}
}

// The topics of keys are a list or a mapping, here and there.
func TestTopicsOfKeys(t *testing.T) {
	want := map[string]string{"order:": "order.expired", "a=b": "eq", "": "expired"}
	for name, text := range map[string]string{
		"in the environment": "",
		"nested":             `resp: {topics: {"order:": order.expired, "a=b": eq, "": expired}, flush: true}`,
		"flat":               "resp_topics:\n  'order:': order.expired\n  a=b: eq\n  '': expired",
		"a list":             `resp_topics: ["order:=order.expired", "a=b=eq", "=expired"]`,
	} {
		t.Run(name, func(t *testing.T) {
			if text == "" {
				t.Setenv("LAPSE_RESP_TOPICS", "order:=order.expired;a=b=eq;=expired")
			}
			got, _, bad, err := parsed(t, text)
			if err != nil || bad.err() != nil {
				t.Fatal(err, bad.err())
			}
			port := got.redisPort(bad)
			if diff := cmp.Diff(want, port.cfg.Topics); diff != "" || bad.err() != nil || port.cfg.Flush != (name == "nested") {
				t.Errorf("%s %v", diff, bad.err())
			}
		})
	}
}

// Every fault is reported, and all of them at once.
func TestAllFaultsAtOnce(t *testing.T) {
	t.Setenv("LAPSE_MAX_PAYLOAD", "much")
	got, _, bad, err := parsed(t, `
max_in_flight: lots
max_bytes: [1, 2]
colour: red
sweep: {often: yes, at: 0 3 * * *}
sweep_at: 0 4 * * *
`, "--listen", "0.0.0.0:0", "--answer-within", "soon", "--log-format", "xml", "--log-level", "loud", "--max-pending", "0")
	if err != nil {
		t.Fatal(err)
	}
	got.addresses(bad)
	text := bad.err().Error()
	for _, name := range []string{"max-payload", "max-in-flight", "max-bytes", "colour", "sweep_often", "sweep-at: is set twice", "listen", "answer-within", "log-format", "log-level", "max-pending"} {
		if !strings.Contains(text, "\n  "+name) {
			t.Errorf("%s is not reported", name)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestUnreadableFile(t *testing.T) {
	for name, text := range map[string]string{
		"not yaml":       "max_pending: [",
		"a nested list":  "sweep: {at: [[1]]}",
		"a gap":          "sweep: {at: [0 3 * * *, ]}\nlog: {level: [null]}",
		"twice, a list":  "sweep_at: [a]\nsweep: {at: [b]}",
		"twice":          "sweep_every: 1s\nsweep: {every: 2s}",
		"topic, typo":    "topics: {a: {leese: 3s}}",
		"topic, type":    "topics: {a: {concurrency: many}}",
		"topics, a list": "topics: [a]",
		"a scalar":       "42",
	} {
		t.Run(name, func(t *testing.T) {
			_, _, bad, err := parsed(t, text)
			if err == nil {
				err = bad.err()
			}
			if err == nil {
				t.Error("want an error")
			} else if strings.Contains(err.Error(), "goroutine") {
				t.Error(err)
			}
		})
	}
	if _, _, _, err := parsed(t, "", "--config", filepath.Join(t.TempDir(), "missing.yaml")); err == nil {
		t.Error("a missing file: want an error")
	}
}

// A server listens beyond this machine only with --insecure, if nothing else protects it.
func TestListen(t *testing.T) {
	for _, test := range []struct {
		listen   string
		insecure bool
		ok       bool
	}{
		{"127.0.0.1:0", false, true},
		{"127.1.2.3:0", false, true},
		{"[::1]:0", false, true},
		{"localhost:0", false, true},
		{"0.0.0.0:0", false, false},
		{":0", false, false},
		{"[::]:0", false, false},
		{"192.0.2.1:7480", false, false},
		{"0.0.0.0:0", true, true},
		{":0", true, true},
		{"", false, false},
		{"7480", false, false},
		{"127.0.0.1:99999", false, false},
		{"127.0.0.1:http-no-such", true, false},
	} {
		bad := &faults{}
		s := settings{nodeSettings: nodeSettings{Listen: test.listen, Insecure: test.insecure, Data: "x"}}
		s.LogFormat, s.HandoverTimeout = "text", time.Second
		if s.addresses(bad); (bad.err() == nil) != test.ok {
			t.Errorf("%q, insecure %v: %v", test.listen, test.insecure, bad.err())
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		out  string // part of standard output
		err  string // part of standard error
	}{
		{[]string{"version"}, exitOK, "lapse ", ""},
		{[]string{"--help"}, exitOK, "serve", ""},
		{[]string{"serve", "--help"}, exitOK, "LAPSE_MAX_PENDING", ""},
		{nil, exitUsage, "", "Usage: lapse <command>"},
		{[]string{"topics"}, exitUsage, "", "lapse topics --help"},
		{[]string{"frobnicate"}, exitUsage, "", "frobnicate"},
		{[]string{"serve", "--frobnicate"}, exitUsage, "", "frobnicate"},
		{[]string{"serve", "--listen", "0.0.0.0:0"}, exitUsage, "", "--insecure"},
	} {
		var out, errs bytes.Buffer
		code := run(context.Background(), test.args, streams{&out, &errs})
		if code != test.code || !strings.Contains(out.String(), test.out) || !strings.Contains(errs.String(), test.err) {
			t.Errorf("%q: exit code %d, want %d\nstdout: %s\nstderr: %s", test.args, code, test.code, &out, &errs)
		}
		if test.err == "" && errs.Len() > 0 {
			t.Errorf("%q: noise on standard error: %s", test.args, &errs)
		}
	}
}
