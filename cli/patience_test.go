package cli

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Commands succeed in silence, however slow the machine of the tests is.
func init() { patience = time.Hour }

// A watchedScreen is a screen that tells when it was first watchedScreen to.
type watchedScreen struct {
	screen
	once sync.Once
	done chan struct{}
}

func (w *watchedScreen) Write(p []byte) (int, error) {
	defer w.once.Do(func() { close(w.done) })
	return w.screen.Write(p)
}

// A command about one task that takes long says on standard error what the server waits for.
func TestCommandsSayWhatTheyWaitFor(t *testing.T) {
	patience = time.Millisecond
	defer func() { patience = time.Hour }()
	for _, args := range [][]string{{"schedule", "x", "--id", "a"}, {"cancel", "a"}, {"fire", "a"}, {"hold", "a"}, {"reschedule", "a", "--delay", "1h"}} {
		told := &watchedScreen{done: make(chan struct{})}
		s := canned(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" {
				fmt.Fprint(w, `{"ready":true,"waiting":[{"what":"node n1","detail":"it has sent no heartbeat for 3s","since":"2026-01-01T00:00:00Z"}]}`)
				return
			}
			select {
			case <-told.done:
			case <-r.Context().Done():
			}
			if args[0] == "cancel" {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			fmt.Fprint(w, `{"id":"a","topic":"x","state":"pending","due_at":"2026-01-01T00:00:00Z"}`)
		})
		code := run(t.Context(), append(args, "--server", s.url), streams{new(screen), told})
		errs := told.String()
		if code != exitOK || !strings.HasPrefix(errs, "lapse: waiting: node n1: it has sent no heartbeat for 3s\n") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit code %d, %q", args, code, errs)
		}
	}
}
