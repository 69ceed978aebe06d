package tasks

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// startFaulty starts a node whose ledger does as it is told.
func (c *crew) startFaulty(name string) (*mate, *faultyMember) {
	c.t.Helper()
	member := &faultyMember{Member: c.fleet.Join(name, crewShards)}
	m := &mate{c: c, name: name, member: member.Member}
	var err error
	if m.Scheduler, err = Open(c.t.Context(), member, Config{Node: name, Log: slog.New(slog.NewTextHandler(c.log, nil))}); err != nil {
		c.t.Fatalf("Open of %s: %v", name, err)
	}
	c.t.Cleanup(member.heal)
	c.nodes = append(c.nodes, m)
	return m, member
}

// While a node's ledger has taken a shard of which memory has not been told, no node says
// that an id does not exist which was not registered: it would be created twice.
func TestAskedBetweenGainAndKnowledge(t *testing.T) {
	request := Request{ID: "x", Topic: "t", Delay: time.Hour}
	for name, ask := range map[string]func(context.Context, *mate) (Task, error){
		"Get":      func(ctx context.Context, m *mate) (Task, error) { return m.Get(ctx, "x") },
		"Schedule": func(ctx context.Context, m *mate) (Task, error) { return m.Schedule(ctx, request) },
	} {
		for at := range 2 {
			t.Run(fmt.Sprint(name, " at ", at), func(t *testing.T) {
				crewed(t, 1, func(t *testing.T, c *crew) {
					a := c.nodes[0]
					first := a.must(request)
					a.kill()
					b, member := c.startFaulty("b")
					d := c.start("d")
					c.nodes = append(c.nodes, d)
					pass(3 * time.Second) // what these have is registered
					release := member.hold("Gained")
					b.member.AdoptFrom(a.member)
					time.AfterFunc(100*time.Millisecond, release)
					got, err := ask(t.Context(), []*mate{b, d}[at])
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
func TestGainedWhileRegistering(t *testing.T) {
	crewed(t, 1, func(t *testing.T, c *crew) {
		a := c.nodes[0]
		b, member := c.startFaulty("b")
		pass(3 * time.Second)
		request := Request{ID: "x", Topic: "t", Delay: time.Hour}
		first := a.must(request)
		release := member.hold("File")
		time.AfterFunc(100*time.Millisecond, func() {
			a.kill()
			b.member.AdoptFrom(a.member)
			pass(100 * time.Millisecond)
			release()
		})
		again, err := b.Schedule(t.Context(), request)
		want(t, "Schedule", err, nil)
		if !again.Repeated || !again.Created.Equal(first.Created) {
			t.Errorf("%+v is not the task that there was: %+v", again, first)
		}
		want(t, "check", b.check(member), nil)
		pass(time.Hour)
		ds, err := b.Reserve(t.Context(), "t", 2, 0, 0)
		if err != nil || len(ds) != 1 {
			t.Errorf("Reserve = %v, %v", ds, err)
		}
	})
}
