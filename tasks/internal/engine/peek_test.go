package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Peek tells of a task what Get tells, and says so where it would have to wait.
func TestPeek(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for _, request := range []Request{
			{ID: "pending", Topic: "jobs", Payload: []byte("some text"), Delay: time.Hour},
			{ID: "held", Topic: "jobs", Held: true},
		} {
			if _, err := r.Schedule(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		seen := Task{Payload: make([]byte, 3, 100)}
		room := &seen.Payload[:1][0]
		for _, id := range []string{"pending", "held"} {
			found, known := r.Admin().Peek(t.Context(), []byte(id), &seen)
			if got := r.MustGet(id); !found || !known || seen.Topic != got.Topic || seen.State != got.State || string(seen.Payload) != string(got.Payload) ||
				!seen.Due.Equal(got.Due) || !seen.SeenAt.Equal(got.SeenAt) || seen.Attempt != got.Attempt {
				t.Errorf("%s is %v, %v, %+v; Get tells %+v", id, found, known, seen, got)
			}
		}
		if room != &seen.Payload[:1][0] {
			t.Error("the room of the payload is not used")
		}
		peek := func(what, id string, wantFound, wantKnown bool) {
			t.Helper()
			if found, known := r.Admin().Peek(t.Context(), []byte(id), &seen); found != wantFound || known != wantKnown {
				t.Errorf("%s: %v, %v, want %v, %v", what, found, known, wantFound, wantKnown)
			}
		}
		peek("no task", "none", false, true)
		_, release := r.Faulty.Hold(ledgertest.Apply)
		done := make(chan error)
		go func() { done <- r.Cancel(t.Context(), "pending") }()
		go func() {
			_, err := r.Schedule(t.Context(), Request{ID: "new", Topic: "jobs", Delay: time.Hour})
			done <- err
		}()
		synctest.Wait()
		peek("a task that is being cancelled", "pending", false, false)
		peek("a task that is being created", "new", false, false)
		release()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		peek("a cancelled task", "pending", false, true)
		seen = Task{}
		if found, known := r.Admin().Peek(WithGrant(t.Context(), &Grant{Topics: []string{"other"}}), []byte("held"), &seen); found || known || seen.Topic != "" {
			t.Errorf("a task of another topic is told: %v, %v, %+v", found, known, seen)
		}
	})
}
