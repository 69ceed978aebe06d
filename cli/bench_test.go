package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/cli/bench"
)

func TestBench(t *testing.T) {
	dir := t.TempDir()
	url, _ := started(t, "--data", t.TempDir())
	t.Setenv("LAPSE_REDIS", "redis://127.0.0.1:1") // the server's, not to be measured
	for name, args := range map[string][]string{
		"embedded": {"--ledger", "memory,disk", "--dir", dir, "--workload", "single,batch"},
		"server":   {"--server", url, "--workload", "batch,single"},
	} {
		t.Run(name, func(t *testing.T) {
			args = append([]string{"bench", "--tasks", "300", "--callers", "2", "--batch", "100"}, args...)
			var out, errs bytes.Buffer
			if code := run(t.Context(), args, streams{&out, &errs}); code != exitOK {
				t.Fatalf("exit code %d: %s", code, &errs)
			}
			if !strings.Contains(out.String(), "single") || !strings.Contains(out.String(), "batch") {
				t.Errorf("the table: %s", &out)
			}
			out.Reset()
			if code := run(t.Context(), append(args, "--json"), streams{&out, &errs}); code != exitOK {
				t.Fatalf("exit code %d: %s", code, &errs)
			}
			var r bench.Report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil || !r.Whole || len(r.Results) < 2 || r.Faults != (bench.Faults{}) {
				t.Errorf("%+v: %v", r, err)
			}
		})
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestBenchRefused(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"bench", "--workload", "fast", "--callers", "many", "--payload", "1", "--ledger", "redis"}, streams{&out, &errs})
	if code != exitUsage || out.Len() > 0 {
		t.Errorf("exit code %d, printed %s", code, &out)
	}
	for _, name := range []string{"workload", "callers", "payload", "redis"} {
		if !strings.Contains(errs.String(), name+":") {
			t.Errorf("%s is not reported: %s", name, &errs)
		}
	}
	if code := run(t.Context(), []string{"bench", "--server", "http://127.0.0.1:1"}, streams{&out, &errs}); code != exitFailed {
		t.Errorf("no server: exit code %d", code)
	}
}

// A token is not an argument, since every user of the machine could read it.
func TestBenchToken(t *testing.T) {
	var text string
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		text = r.Header.Get("Authorization")
		w.WriteHeader(http.StatusTeapot)
	})
	file := written(t, "token", "from-a-file\n")
	t.Setenv("LAPSE_TOKEN", "from-the-environment")
	for want, args := range map[string][]string{"from-a-file": {"--token-from", file}, "from-the-environment": {}} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"bench", "--server", s.url}, args...), streams{&out, &errs})
		if code != exitFailed || text != "Bearer "+want {
			t.Errorf("exit code %d, sent %q: %s", code, text, &errs)
		}
	}
	var out, errs bytes.Buffer
	for _, args := range [][]string{{"--token", "x"}, {"--token-from", file}, {"--server", s.url, "--token-from", file + "-none"}} {
		if code := run(t.Context(), append([]string{"bench"}, args...), streams{&out, &errs}); code != exitUsage {
			t.Errorf("%v: exit code %d: %s", args, code, &errs)
		}
	}
}
