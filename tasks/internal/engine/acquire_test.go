package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// While a node's ledger has taken a shard of which memory has not been told, no node says
// that an id does not exist which was not registered: it would be created twice.
func TestAcquiredBeforeMemoryKnows(t *testing.T) {
	request := tasks.Request{ID: "x", Topic: "t", Delay: time.Hour}
	for name, ask := range map[string]func(context.Context, *rig.Node) (tasks.Task, error){
		"Get":      func(ctx context.Context, m *rig.Node) (tasks.Task, error) { return m.Get(ctx, "x") },
		"Schedule": func(ctx context.Context, m *rig.Node) (tasks.Task, error) { return m.Schedule(ctx, request) },
	} {
		for at := range 2 {
			t.Run(fmt.Sprint(name, " at ", at), func(t *testing.T) {
				rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
					a := f.Nodes[0]
					first := a.Must(request)
					a.Crash()
					b := f.Start("b", rig.FleetShards, tasks.Config{})
					d := f.Start("d", rig.FleetShards, tasks.Config{})
					rig.Pass(3 * time.Second) // what these have is registered
					release := b.Member.Hold("Acquired")
					b.Member.AdoptFrom(a.Member.Member)
					time.AfterFunc(100*time.Millisecond, release)
					got, err := ask(t.Context(), []*rig.Node{b, d}[at])
					rig.Want(t, name, err, nil)
					if got.Node != "b" || !got.Created.Equal(first.Created) {
						t.Errorf("%+v is not the task that there was: %+v", got, first)
					}
				})
			})
		}
	}
}

// A shard may be gained and read while one of its ids is being registered for a caller. What is
// read is what the caller gets.
func TestAcquiredWhileRegistering(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		b := f.Start("b", rig.FleetShards, tasks.Config{})
		rig.Pass(3 * time.Second)
		request := tasks.Request{ID: "x", Topic: "t", Delay: time.Hour}
		first := a.Must(request)
		release := b.Member.Hold("Update")
		time.AfterFunc(100*time.Millisecond, func() {
			a.Crash()
			b.Member.AdoptFrom(a.Member.Member)
			rig.Pass(100 * time.Millisecond)
			release()
		})
		again, err := b.Schedule(t.Context(), request)
		rig.Want(t, "Schedule", err, nil)
		if !again.Repeated || !again.Created.Equal(first.Created) {
			t.Errorf("%+v is not the task that there was: %+v", again, first)
		}
		b.Check()
		if log := b.Log.All(); strings.Contains(log, "was taken over") {
			t.Errorf("the log has a line for each shard that was adopted:\n%s", log)
		}
		rig.Pass(time.Hour)
		ds, err := b.Reserve(t.Context(), "t", 2, 0, 0)
		if err != nil || len(ds) != 1 {
			t.Errorf("Reserve = %v, %v", ds, err)
		}
	})
}
