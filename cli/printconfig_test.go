package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), append([]string{"serve", "--print-config"}, args...), streams{&out, &errs}); code != exitOK || errs.Len() > 0 {
		t.Fatalf("exit code %d: %s%s", code, &out, &errs)
	}
	return out.String()
}

func configured(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "lapse.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Each setting says where it comes from.
func TestPrintConfig(t *testing.T) {
	data := filepath.Join(t.TempDir(), "never-made")
	file := configured(t, "max_pending: 30\nsweep: {every: 3s}\ndata: "+data+"\ntopics:\n  b: {lease: 1d, retry: {max_attempts: 7}}\n")
	t.Setenv("LAPSE_MAX_PAYLOAD", "2000")
	t.Setenv("LAPSE_MAX_PENDING", "40")
	text := printed(t, "--config", file, "--max-in-flight", "3", "--node", `a: "b" #}`, "--log-level", "warn")
	for _, line := range []string{
		`listen: "127.0.0.1:7480"  # default`,
		`data: "` + data + `"  # ` + file + `:3`,
		`node: "a: \"b\" #}"  # flag --node`,
		`max_pending: 40  # environment LAPSE_MAX_PENDING`,
		`max_in_flight: 3  # flag --max-in-flight`,
		`max_payload: 2000  # environment LAPSE_MAX_PAYLOAD`,
		`sweep_every: 3s  # ` + file + `:2`,
		`log_level: warn  # flag --log-level`,
		`insecure: false  # default`,
		`# redis: not set`,
		`topics:`,
		`  "b": {retry: {max_attempts: 7}, lease: 1d}  # ` + file + `:5`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("%s\nis not in\n%s", line, text)
		}
	}
	if _, err := os.Stat(data); err == nil {
		t.Error("something was started")
	}
}

// What was printed is read back as the same settings, all of them from the file.
func TestPrintConfigRoundTrip(t *testing.T) {
	first := []string{"--max-pending", "5", "--node", "it's #1: {x}", "--log-level", "error", "--insecure", "--sweep-every", "1500ms", "--sweep-at", "0,30 3 * * *", "--sweep-at", "TZ=Asia/Tokyo 2 2 * * *",
		"--config", configured(t, "topics: {a: {lease: 20h, paused: true, concurrency: 3}, b: {}, c: {retry: {min_backoff: 5ms, max_backoff: 3d}}}")}
	text := printed(t, first...)
	file := configured(t, text)
	again := printed(t, "--config", file)
	plain := regexp.MustCompile(`  # .*`)
	if diff := cmp.Diff(plain.ReplaceAllString(text, ""), plain.ReplaceAllString(again, "")); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(again, "# default") || strings.Contains(again, "# flag") {
		t.Errorf("not from the file:\n%s", again)
	}
	want, _, _, err := parsed(t, "", first...)
	if err != nil {
		t.Fatal(err)
	}
	got, _, bad, err := parsed(t, "", "--config", file)
	if err != nil || bad.err() != nil {
		t.Fatal(err, bad.err())
	}
	want.Config, got.Config = "", ""
	want.Data = defaultData // found when it was printed
	if diff := cmp.Diff(want, got, everyField); diff != "" {
		t.Error(diff)
	}
}

func TestPrintConfigMasksPasswords(t *testing.T) {
	for url, want := range map[string]string{
		"redis://:s3cret@127.0.0.1:1/0":                                               `"redis://:***@127.0.0.1:1/0"`,
		"rediss://u:s3cret%40x@127.0.0.1":                                             `"rediss://u:***@127.0.0.1"`,
		"redis://u:s3c:s3cret@127.0.0.1":                                              `"redis://u:***@127.0.0.1"`,
		"redis://127.0.0.1:1":                                                         `"redis://127.0.0.1:1"`,
		"redis://u:s3c#s3cret@h":                                                      `"redis://u:***@h"`,
		`redis://u:s3c"s3cret@h`:                                                      `"redis://u:***@h"`,
		"redis://u:s3c@s3cret@h":                                                      `"redis://u:***@h"`,
		"redis+sentinel://h/m?sentinel%5Fpassword=s3cret":                             `"redis+sentinel://h/m?sentinel%5Fpassword=***"`,
		`redis+sentinel://h/m?sentinel_password=s3c"s3cret`:                           `"redis+sentinel://h/m?sentinel_password=***"`,
		"redis+cluster://u:s3cret@h1:1,h2:2":                                          `"redis+cluster://u:***@h1:1,h2:2"`,
		"redis+sentinel://u:s3cret@h1,h2/m?sentinel_user=x&sentinel_password=s3cret2": `"redis+sentinel://u:***@h1,h2/m?sentinel_user=x&sentinel_password=***"`,
	} {
		text := printed(t, "--redis", url, "--node", "n")
		_, line, _ := strings.Cut(text, "\nredis: ")
		line, _, _ = strings.Cut(line, "\n")
		if !strings.HasPrefix(line, want+"  # flag --redis") || strings.Contains(text, "s3c") {
			t.Errorf("%s: got %s", url, line)
		}
		if masked := strings.HasSuffix(line, "a password is masked"); masked != strings.Contains(url, "s3cret") {
			t.Errorf("%s: got %s", url, line)
		}
	}
}

// Faults are reported as at a start.
func TestPrintConfigFaults(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"serve", "--print-config", "--max-pending", "0", "--listen", "0.0.0.0:0"}, streams{&out, &errs})
	if code != exitUsage || out.Len() > 0 || !strings.Contains(errs.String(), "max-pending") || !strings.Contains(errs.String(), "listen") {
		t.Errorf("exit code %d: %s%s", code, &out, &errs)
	}
	for _, text := range []string{"print_config: true", "server: http://x", "all: true"} {
		code := run(t.Context(), []string{"serve", "--print-config", "--config", configured(t, text)}, streams{&out, &errs})
		if code != exitUsage || !strings.Contains(errs.String(), "is no setting") {
			t.Errorf("%s: exit code %d: %s", text, code, &errs)
		}
	}
}

// A fault in the file is told with its line.
func TestFaultsOfTheFile(t *testing.T) {
	name := configured(t, `
max_pending: lots
colour: red
listen: 0.0.0.0:0
sweep:
  every: 5h
shutdown-grace: 0s
topics:
  a:
    retry: {max_attempts: 0, min_backoff: 0s, max_backoff: 1w}
    lease: 45
    concurrency: 1.5
`)
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"serve", "--config", name}, streams{&out, &errs}); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	for fault, line := range map[string]string{
		"max-pending: ": ":2)", "colour in the file": ":3)", "listen: ": ":4)", "sweep.every must be": ":6)", "shutdown-grace: must not be zero": ":7)",
		"topics.a.retry.max_attempts: must not be zero": ":10)", "topics.a.retry.min_backoff: must not be zero": ":10)",
		"topics.a.retry.max_backoff: must be a duration": ":10)", "topics.a.lease: must be a duration": ":11)", "topics.a.concurrency: must be an integer": ":12)",
	} {
		_, after, found := strings.Cut(errs.String(), "\n  "+fault)
		after, _, _ = strings.Cut(after, "\n")
		if !found || !strings.HasSuffix(after, "("+name+line) {
			t.Errorf("%s: got %q", fault, after)
		}
	}
	if t.Failed() {
		t.Log(errs.String())
	}
	for text, want := range map[string]string{
		"a: 1\nb: [\n":                             ":2: ",
		"max_pending: 1\nmax_pending: 2":           ":2: ",
		"max_pending:\n- 1":                        "max-pending: a list is not expected here (",
		"topics:\n  a:\n    leese: 3s":             `:3: unknown field "leese"`,
		"topics:\n  a:\n    paused: 3":             ":3: ",
		"max_pending: 1\n---\nmax_pending: 2":      ": there is more than one document",
		"topics: {a: {lease: 25h}}":                "lease must be from 1 s to 24 h",
		"topics: {a: {retry: {max_attempts: -1}}}": "retry.max_attempts must be from 1 to 1000",
		"answer_within: 1.5":                       "answer-within: ",
		"sweep:\n  at: ['0 3 * * *', soon]":        ":2)",
	} {
		errs.Reset()
		name := configured(t, text)
		code := run(t.Context(), []string{"serve", "--config", name}, streams{&out, &errs})
		if code != exitUsage || !strings.Contains(errs.String(), want) || !strings.Contains(errs.String(), name) {
			t.Errorf("%q: exit code %d: %s", text, code, &errs)
		}
	}
}

// Days are understood in flags and in the file; an anchor and an empty name are no fault.
func TestDaysInSettings(t *testing.T) {
	s, file, bad, err := parsed(t, "topics: {a: {retry: {max_backoff: 2d}, lease: &l 1h}, b: {lease: *l, concurrency: }}", "--failover-after", "1d2h")
	if err != nil || bad.err() != nil {
		t.Fatal(err, bad.err())
	}
	if s.FailoverAfter.Hours() != 26 || file.topics["a"].Retry.MaxBackoff.Hours() != 48 || file.topics["b"].Lease.Hours() != 1 {
		t.Errorf("got %s, %+v", s.FailoverAfter, file.topics)
	}
}
