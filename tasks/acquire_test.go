package tasks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// While a node's ledger has taken a shard of which memory has not been told, no node says
// that an id does not exist which was not registered: it would be created twice.
func TestAcquiredBeforeMemoryKnows(t *testing.T) {
	request := tasks.Request{ID: "x", Topic: "t", Delay: time.Hour}
	for name, ask := range map[string]func(context.Context, *node) (tasks.Task, error){
		"Get":      func(ctx context.Context, m *node) (tasks.Task, error) { return m.Get(ctx, "x") },
		"Schedule": func(ctx context.Context, m *node) (tasks.Task, error) { return m.Schedule(ctx, request) },
	} {
		for at := range 2 {
			t.Run(fmt.Sprint(name, " at ", at), func(t *testing.T) {
				fleetBubble(t, 1, func(t *testing.T, f *fleet) {
					a := f.nodes[0]
					first := a.must(request)
					a.crash()
					b := f.start("b", fleetShards, tasks.Config{})
					d := f.start("d", fleetShards, tasks.Config{})
					pass(3 * time.Second) // what these have is registered
					release := b.member.hold("Acquired")
					b.member.AdoptFrom(a.member.Member)
					time.AfterFunc(100*time.Millisecond, release)
					got, err := ask(t.Context(), []*node{b, d}[at])
					want(t, name, err, nil)
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
	fleetBubble(t, 1, func(t *testing.T, f *fleet) {
		a := f.nodes[0]
		b := f.start("b", fleetShards, tasks.Config{})
		pass(3 * time.Second)
		request := tasks.Request{ID: "x", Topic: "t", Delay: time.Hour}
		first := a.must(request)
		release := b.member.hold("Update")
		time.AfterFunc(100*time.Millisecond, func() {
			a.crash()
			b.member.AdoptFrom(a.member.Member)
			pass(100 * time.Millisecond)
			release()
		})
		again, err := b.Schedule(t.Context(), request)
		want(t, "Schedule", err, nil)
		if !again.Repeated || !again.Created.Equal(first.Created) {
			t.Errorf("%+v is not the task that there was: %+v", again, first)
		}
		b.check()
		if log := b.log.all(); strings.Contains(log, "was taken over") {
			t.Errorf("the log has a line for each shard that was adopted:\n%s", log)
		}
		pass(time.Hour)
		ds, err := b.Reserve(t.Context(), "t", 2, 0, 0)
		if err != nil || len(ds) != 1 {
			t.Errorf("Reserve = %v, %v", ds, err)
		}
	})
}
