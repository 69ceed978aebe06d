package cluster_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// What has become of a task is in the memory of one node. Calls that are repeated at another one
// are answered as the first ones, also long after and when the shard has another owner.
func TestRepeatedAtAnotherNode(t *testing.T) {
	for name, handOver := range map[string]bool{"same owner": false, "another owner": true} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				a, b, c := f.Join("a", 1, Config{}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{})
				now := time.Now().Truncate(time.Millisecond)
				var imported []Exported
				for _, id := range []string{"chosen", a.IDAt(0)} {
					imported = append(imported, Exported{Task: Task{ID: id, Topic: "x", State: Pending, Due: now, Next: now, Created: now.Add(-time.Hour), Revision: 1}})
				}
				results, err := a.Admin().Import(t.Context(), imported)
				rig.Want(t, "Import", err, nil)
				for _, r := range results {
					rig.Want(t, "of the import", r.Err, nil)
				}
				ds := a.Pull("x", imported[0].ID, imported[1].ID)
				for _, d := range ds {
					a.SettleOne(Ack, d)
				}
				cancelled := []string{"cancelled", a.IDAt(0)}
				for _, id := range cancelled {
					a.Must(Request{ID: id, Topic: "y", Delay: time.Hour})
					rig.Want(t, "Cancel", a.Cancel(t.Context(), id), nil)
				}
				rig.Pass(time.Minute)
				if handOver {
					rig.Want(t, "hand-over", a.HandTo(b), nil)
					rig.Pass(time.Second)
				}
				for _, n := range []*rig.Node{c, b, a} {
					results, err = n.Admin().Import(t.Context(), imported)
					rig.Want(t, "Import again", err, nil)
					for _, r := range results {
						if r.Err != nil || !r.Repeated {
							t.Errorf("at %s: %+v", n.Name, r)
						}
					}
					for _, d := range ds {
						n.SettleOne(Ack, d)
					}
					for _, id := range cancelled {
						rig.Want(t, "Cancel again at "+n.Name, n.Cancel(t.Context(), id), nil)
					}
					rig.Want(t, "Cancel of what never was", n.Cancel(t.Context(), "unknown"), ErrNotFound)
					rig.Want(t, "Cancel of what was delivered", n.Cancel(t.Context(), imported[1].ID), ErrNotFound)
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
		rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
			a, b, c := f.Join("a", 1, Config{}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{})
			cancel := func(n *rig.Node) error {
				if !batch {
					return n.Cancel(t.Context(), "again")
				}
				done, err := n.Admin().Act(t.Context(), Act{Action: CancelAction, IDs: []string{"again"}})
				if len(done.Failed) > 0 {
					return done.Failed[0].Err
				}
				return err
			}
			a.Must(Request{ID: "again", Topic: "x", Delay: time.Hour})
			rig.Want(t, "Cancel", cancel(b), nil)
			rig.Want(t, "Cancel again", cancel(b), nil)
			a.Must(Request{ID: "again", Topic: "x"})
			rig.Pass(time.Second)
			a.SettleOne(Ack, a.Pull("x", "again")[0])
			rig.Want(t, "hand-over", a.HandTo(c), nil)
			a.Crash()
			rig.Pass(time.Second)
			rig.Want(t, "Cancel of what was delivered", cancel(b), ErrNotFound)

			c.Must(Request{ID: "again", Topic: "x", Delay: time.Hour})
			rig.Want(t, "Cancel of the last one", cancel(b), nil)
			c.Crash()
			rig.Pass(2 * time.Second)
			b.Adopt(c)
			rig.Pass(time.Second)
			rig.Want(t, "Cancel by a caller of other topics", b.Cancel(rig.OwnTopics(t.Context()), "again"), ErrNotFound)
			rig.Want(t, "Cancel of the last one again", cancel(b), nil)
		})
	}
}

// A node that has cancelled a task itself does not tell it of a later task of the id, which ended
// while another node had the shard.
func TestCancelledBeforeAnAdoption(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		a.Must(Request{ID: "again", Topic: "x", Delay: time.Hour})
		rig.Want(t, "Cancel", a.Cancel(t.Context(), "again"), nil)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(10 * time.Millisecond)
		b.Must(Request{ID: "again", Topic: "x"})
		rig.Pass(10 * time.Millisecond)
		b.SettleOne(Ack, b.Pull("x", "again")[0])
		if f.Ledger.Holder(a.ShardID(0)) != "b" {
			t.Fatal("the shard has come home already")
		}
		b.Crash()
		rig.Pass(2 * time.Second)
		a.Adopt(b)
		rig.Pass(time.Second)
		rig.Want(t, "Cancel of what was delivered", a.Cancel(t.Context(), "again"), ErrNotFound)
	})
}

// An id that was used again since is answered for by its last task.
func TestCancelledBeforeItWasUsedAgain(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Join("a", 1, Config{}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{})
		a.Must(Request{ID: "again", Topic: "y", Delay: time.Hour})
		rig.Want(t, "Cancel", a.Cancel(t.Context(), "again"), nil)
		rig.Pass(time.Minute)
		b.Must(Request{ID: "again", Topic: "x"})
		b.SettleOne(Ack, b.Pull("x", "again")[0])
		rig.Pass(time.Minute)
		rig.Want(t, "Cancel", c.Cancel(t.Context(), "again"), ErrNotFound)
	})
}

// A node that may have finished an imported task and does not answer is waited for, and another one
// does not import the task meanwhile.
func TestImportWhileANodeIsSilent(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		now := time.Now().Truncate(time.Millisecond)
		imported := []Exported{{Task: Task{ID: "chosen", Topic: "x", State: Pending, Due: now, Next: now, Created: now, Revision: 1}}}
		_, err := a.Admin().Import(t.Context(), imported)
		rig.Want(t, "Import", err, nil)
		a.SettleOne(Ack, a.Pull("x", "chosen")[0])
		rig.Pass(time.Minute)
		f.Lose(func(_, to string, _ []byte) bool { return to == "a" })
		results, err := b.Admin().Import(t.Context(), imported)
		rig.Want(t, "Import", err, nil)
		if !errors.Is(results[0].Err, ErrUnavailable) {
			t.Errorf("%+v", results[0])
		}
		f.Lose(nil)
		results, err = b.Admin().Import(t.Context(), imported)
		rig.Want(t, "Import", err, nil)
		if results[0].Err != nil || !results[0].Repeated {
			t.Errorf("%+v", results[0])
		}
	})
}

// Callers that ask at the same time share calls.
func TestCallsAboutFinishedTasksAreShared(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		var calls atomic.Int64
		count := func(_, to string, message []byte) bool {
			if to == "a" && bytes.Contains(message, []byte(cluster.FinishedMethod.Name)) {
				calls.Add(1)
			}
			return false
		}
		f.Lose(count)
		b := f.Node("b")
		const callers = 100
		done := make(chan error, callers)
		for range callers {
			go func() { done <- b.Cancel(t.Context(), "unknown") }()
		}
		for range callers {
			rig.Want(t, "Cancel", <-done, ErrNotFound)
		}
		f.Lose(nil)
		if n := calls.Load(); n == 0 || n > callers/4 {
			t.Errorf("%d callers have sent %d calls", callers, n)
		}
	})
}
