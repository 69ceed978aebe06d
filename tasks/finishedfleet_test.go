package tasks_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// What has become of a task is in the memory of one node. Calls that are repeated at another one
// are answered as the first ones, also long after and when the shard has another owner.
func TestRepeatedAtAnotherNode(t *testing.T) {
	for name, handOver := range map[string]bool{"same owner": false, "another owner": true} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 0, func(t *testing.T, f *fleet) {
				a, b, c := f.join("a", 1, Config{}), f.join("b", 1, Config{}), f.join("c", 1, Config{})
				now := time.Now().Truncate(time.Millisecond)
				var imported []Exported
				for _, id := range []string{"chosen", a.idAt(0)} {
					imported = append(imported, Exported{Task: Task{ID: id, Topic: "x", State: Pending, Due: now, Next: now, Created: now.Add(-time.Hour), Revision: 1}})
				}
				results, err := a.Import(t.Context(), imported)
				want(t, "Import", err, nil)
				for _, r := range results {
					want(t, "of the import", r.Err, nil)
				}
				ds := a.pull("x", imported[0].ID, imported[1].ID)
				for _, d := range ds {
					a.settle(Ack, d)
				}
				cancelled := []string{"cancelled", a.idAt(0)}
				for _, id := range cancelled {
					a.must(Request{ID: id, Topic: "y", Delay: time.Hour})
					want(t, "Cancel", a.Cancel(t.Context(), id), nil)
				}
				pass(time.Minute)
				if handOver {
					want(t, "hand-over", a.handTo(b), nil)
					pass(time.Second)
				}
				for _, n := range []*node{c, b, a} {
					results, err = n.Import(t.Context(), imported)
					want(t, "Import again", err, nil)
					for _, r := range results {
						if r.Err != nil || !r.Repeated {
							t.Errorf("at %s: %+v", n.name, r)
						}
					}
					for _, d := range ds {
						n.settle(Ack, d)
					}
					for _, id := range cancelled {
						want(t, "Cancel again at "+n.name, n.Cancel(t.Context(), id), nil)
					}
					want(t, "Cancel of what never was", n.Cancel(t.Context(), "unknown"), ErrNotFound)
					want(t, "Cancel of what was delivered", n.Cancel(t.Context(), imported[1].ID), ErrNotFound)
				}
				if got := a.Stats().Total.Pending + b.Stats().Total.Pending + c.Stats().Total.Pending; got != 0 {
					t.Errorf("%d tasks are there again", got)
				}
			})
		})
	}
}

// A node that has had a task cancelled elsewhere remembers it. It does not tell it of a later task
// of the id, which ended at a node that has ended since.
func TestCancelledBeforeItsLastOwnerEnded(t *testing.T) {
	for _, batch := range []bool{false, true} {
		fleetBubble(t, 0, func(t *testing.T, f *fleet) {
			a, b, c := f.join("a", 1, Config{}), f.join("b", 1, Config{}), f.join("c", 1, Config{})
			cancel := func(n *node) error {
				if !batch {
					return n.Cancel(t.Context(), "again")
				}
				done, err := n.Act(t.Context(), Act{Action: CancelAction, IDs: []string{"again"}})
				if len(done.Failed) > 0 {
					return done.Failed[0].Err
				}
				return err
			}
			a.must(Request{ID: "again", Topic: "x", Delay: time.Hour})
			want(t, "Cancel", cancel(b), nil)
			want(t, "Cancel again", cancel(b), nil)
			a.must(Request{ID: "again", Topic: "x"})
			pass(time.Second)
			a.settle(Ack, a.pull("x", "again")[0])
			want(t, "hand-over", a.handTo(c), nil)
			a.crash()
			pass(time.Second)
			want(t, "Cancel of what was delivered", cancel(b), ErrNotFound)

			c.must(Request{ID: "again", Topic: "x", Delay: time.Hour})
			want(t, "Cancel of the last one", cancel(b), nil)
			c.crash()
			pass(2 * time.Second)
			b.adopt(c)
			pass(time.Second)
			want(t, "Cancel by a caller of other topics", b.Cancel(ownTopics(t.Context()), "again"), ErrNotFound)
			want(t, "Cancel of the last one again", cancel(b), nil)
		})
	}
}

// A node that has cancelled a task itself does not tell it of a later task of the id, which ended
// while another node had the shard.
func TestCancelledBeforeAnAdoption(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		a.must(Request{ID: "again", Topic: "x", Delay: time.Hour})
		want(t, "Cancel", a.Cancel(t.Context(), "again"), nil)
		want(t, "hand-over", a.handTo(b), nil)
		pass(10 * time.Millisecond)
		b.must(Request{ID: "again", Topic: "x"})
		pass(10 * time.Millisecond)
		b.settle(Ack, b.pull("x", "again")[0])
		if f.ledger.Holder(a.shardID(0)) != "b" {
			t.Fatal("the shard has come home already")
		}
		b.crash()
		pass(2 * time.Second)
		a.adopt(b)
		pass(time.Second)
		want(t, "Cancel of what was delivered", a.Cancel(t.Context(), "again"), ErrNotFound)
	})
}

// An id that was used again since is answered for by its last task.
func TestCancelledBeforeItWasUsedAgain(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b, c := f.join("a", 1, Config{}), f.join("b", 1, Config{}), f.join("c", 1, Config{})
		a.must(Request{ID: "again", Topic: "y", Delay: time.Hour})
		want(t, "Cancel", a.Cancel(t.Context(), "again"), nil)
		pass(time.Minute)
		b.must(Request{ID: "again", Topic: "x"})
		b.settle(Ack, b.pull("x", "again")[0])
		pass(time.Minute)
		want(t, "Cancel", c.Cancel(t.Context(), "again"), ErrNotFound)
	})
}

// A node that may have finished an imported task and does not answer is waited for, and another one
// does not import the task meanwhile.
func TestImportWhileANodeIsSilent(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		now := time.Now().Truncate(time.Millisecond)
		imported := []Exported{{Task: Task{ID: "chosen", Topic: "x", State: Pending, Due: now, Next: now, Created: now, Revision: 1}}}
		_, err := a.Import(t.Context(), imported)
		want(t, "Import", err, nil)
		a.settle(Ack, a.pull("x", "chosen")[0])
		pass(time.Minute)
		f.lose(func(_, to string, _ []byte) bool { return to == "a" })
		results, err := b.Import(t.Context(), imported)
		want(t, "Import", err, nil)
		if !errors.Is(results[0].Err, ErrUnavailable) {
			t.Errorf("%+v", results[0])
		}
		f.lose(nil)
		results, err = b.Import(t.Context(), imported)
		want(t, "Import", err, nil)
		if results[0].Err != nil || !results[0].Repeated {
			t.Errorf("%+v", results[0])
		}
	})
}

// Callers that ask at the same time share calls.
func TestCallsAboutFinishedTasksAreShared(t *testing.T) {
	fleetBubble(t, 2, func(t *testing.T, f *fleet) {
		var calls atomic.Int64
		count := func(_, to string, message []byte) bool {
			if to == "a" && bytes.Contains(message, []byte(cluster.FinishedMethod.Name)) {
				calls.Add(1)
			}
			return false
		}
		f.lose(count)
		b := f.node("b")
		const callers = 100
		done := make(chan error, callers)
		for range callers {
			go func() { done <- b.Cancel(t.Context(), "unknown") }()
		}
		for range callers {
			want(t, "Cancel", <-done, ErrNotFound)
		}
		f.lose(nil)
		if n := calls.Load(); n == 0 || n > callers/4 {
			t.Errorf("%d callers have sent %d calls", callers, n)
		}
	})
}
