//go:build fault

package crash

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-json"
)

// TestDirectoryGone moves the data directory away, removes its marker, or puts another directory in
// its place, while the server runs. New tasks must be refused with 503, singly and in batches, and
// /readyz, the metrics and the log must say why; known tasks are still delivered. With the
// directory back, tasks are accepted again, and a crash loses no accepted task.
func TestDirectoryGone(t *testing.T) {
	t.Parallel()
	move := func(from, to string) func(data string) error {
		return func(data string) error { return os.Rename(data+from, data+to) }
	}
	marker := string(filepath.Separator) + "LAPSE"
	for name, c := range map[string]struct{ take, put func(data string) error }{
		"moved":    {move("", ".away"), move(".away", "")},
		"unmarked": {move(marker, ".marker"), move(".marker", marker)},
		"replaced": {exchanged, exchanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			if err := os.MkdirAll(s.data+".other", 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.data+".other"+marker, []byte("lapse ledger, layout 1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			r := s.start()
			r.ready(t)
			create := func(id, when string) *response {
				t.Helper()
				a, err := r.send(http.MethodPost, "/v1/tasks", fmt.Appendf(nil, `{"id":%q,"topic":"t",%s}`, id, when))
				if err != nil {
					t.Fatal(err)
				}
				return a
			}
			for _, id := range []string{"a", "b"} {
				if a := create(id, `"delay":"1h"`); a.status != http.StatusCreated {
					t.Fatalf("answered %d %s", a.status, a.body)
				}
			}
			if a := create("soon", `"delay":"2s"`); a.status != http.StatusCreated {
				t.Fatalf("answered %d %s", a.status, a.body)
			}

			if err := c.take(s.data); err != nil {
				t.Fatal(err)
			}
			// The server checks ten times a second.
			want := map[string]int{"a": 200, "b": 200, "soon": 200, "late": 200, "refused": 404}
			tries := 0
			every(t, 10*time.Millisecond, time.Minute, func() bool {
				tries++
				id := fmt.Sprintf("try-%d", tries)
				a := create(id, `"delay":"1h"`)
				want[id] = map[int]int{http.StatusCreated: 200, http.StatusServiceUnavailable: 404}[a.status]
				return a.status == http.StatusServiceUnavailable
			})
			t.Logf("%d tasks were accepted before", tries-1)
			refused(t, "a task", create("refused", `"delay":"1h"`))
			for path, body := range map[string]string{"/v1/tasks/batch": `[{"topic":"t","delay":"1h"},{"topic":"t","delay":"1h"}]`, "/v1/tasks": `{"topic":"t","delay":"1h"}`} {
				a, err := r.send(http.MethodPost, path, []byte(body))
				if err != nil {
					t.Fatal(err)
				}
				refused(t, path, a)
			}
			a, err := r.send(http.MethodGet, "/readyz", nil)
			if err != nil {
				t.Fatal(err)
			}
			var ready struct {
				Ledger struct {
					OK        bool
					Condition string
				}
			}
			if err := json.Unmarshal(a.body, &ready); err != nil || a.status != http.StatusOK || ready.Ledger.OK || !strings.Contains(ready.Ledger.Condition, "the ledger's directory") {
				t.Errorf("/readyz was answered %d %s", a.status, a.body)
			}
			if a, err := r.send(http.MethodGet, "/metrics", nil); err != nil || !strings.Contains(string(a.body), "\nlapse_ledger_accepting 0\n") {
				t.Errorf("the metrics say that tasks are accepted: %v", err)
			}
			var got struct{ Tasks []pulled }
			if status, _, err := r.call(http.MethodPost, "/v1/topics/t/reserve", []byte(`{"wait":"20s"}`), &got); status != http.StatusOK || len(got.Tasks) != 1 {
				t.Errorf("a task that is known is not delivered: %d, %v, %+v", status, err, got)
			}

			if err := c.put(s.data); err != nil {
				t.Fatal(err)
			}
			every(t, 50*time.Millisecond, time.Minute, func() bool { return create("late", `"delay":"1h"`).status < 300 })
			s.kill()
			if log := r.stderr.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "new tasks are refused") {
				t.Errorf("the log has %s", log)
			}
			r = s.start()
			r.ready(t)
			for id, want := range want {
				if status, data, err := r.exchange(http.MethodGet, "/v1/tasks/"+id, nil); err != nil || status != want {
					t.Errorf("after the crash %s is %d, want %d: %v %s", id, status, want, err, data)
				}
			}
		})
	}
}

// exchanged puts another directory in the place of one, or back.
func exchanged(data string) error {
	for _, names := range [][2]string{{data, data + ".x"}, {data + ".other", data}, {data + ".x", data + ".other"}} {
		if err := os.Rename(names[0], names[1]); err != nil {
			return err
		}
	}
	return nil
}

// refused checks that an answer is that of a ledger that accepts nothing new.
func refused(t *testing.T, what string, a *response) {
	t.Helper()
	if a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "ledger_unavailable") || a.header.Get("Retry-After") == "" {
		t.Errorf("%s: answered %d %s", what, a.status, a.body)
	}
}
