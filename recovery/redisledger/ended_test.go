package redisledger

import (
	"testing"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// wantAtOnce lets a node look for shards, and compares how many it has acquired without a watch of
// failover_after.
func (m *fleetNode) wantAtOnce(t *testing.T, want int) {
	t.Helper()
	m.look(t)
	if want > 0 {
		m.waitAcquired(t, want)
	}
	if n := len(m.member.All()); n != 4+want {
		t.Errorf("%s holds %d shards; it was to have 4 of its own, and %d others", m.opts.Node, n, want)
	}
}

// What a node without others has left in order, another one adopts at once.
func TestAdoptsAtOnceWhatHasEnded(t *testing.T) {
	t.Parallel()
	conform(t, func(t *testing.T, fresh func() *lives) {
		prefix := fresh().opts.Prefix
		join := func(node string) *fleetNode {
			return join(t, fresh().opts.URL, node, func(o *Options) { still(o); o.Prefix = prefix })
		}
		a := join("a")
		ids := a.put(t)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		b := join("b")
		b.wantAtOnce(t, 4)
		b.wantFound(t, ids)
		for _, s := range b.member.All() {
			if b.client.HExists(t.Context(), s.Keys.Tasks(), layout.AffirmField).Val() {
				t.Errorf("the end of %s stays", s.Keys.Tasks())
			}
		}
		if err := b.Close(); err != nil { // the name of a is in the registry still
			t.Fatal(err)
		}
		c := join("c")
		c.wantAtOnce(t, 8)
		c.wantFound(t, ids)
	})
}

// A shard that was left in order waits for failover_after if there is any doubt.
func TestEndedInDoubt(t *testing.T) {
	for name, spoil := range map[string]func(*redistest.Server, *fleetNode, string){
		"its number went back": func(s *redistest.Server, _ *fleetNode, tasks string) { s.Do("hset", tasks, layout.SequenceField, 0) },
		"it was said elsewhere": func(s *redistest.Server, _ *fleetNode, tasks string) {
			s.Do("hset", tasks, layout.AffirmField, "ended 1 abc")
		},
		"it was not said": func(s *redistest.Server, _ *fleetNode, tasks string) { s.Do("hdel", tasks, layout.AffirmField) },
		"the name is not released": func(s *redistest.Server, a *fleetNode, _ string) {
			e := a.member.Registration()
			e.Released = false
			s.Do("hset", a.keys.Nodes(), "a", e.Encode())
		},
		"another life has the name": func(s *redistest.Server, a *fleetNode, _ string) {
			e := a.member.Registration()
			e.Incarnation = "another"
			s.Do("hset", a.keys.Nodes(), "a", e.Encode())
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			a := join(t, server.URL(), "a", still)
			a.put(t)
			shards := a.member.All()
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			for _, s := range shards {
				spoil(server, a, s.Keys.Tasks())
			}
			join(t, server.URL(), "b", still).wantAtOnce(t, 0)
		})
	}
}

// In a fleet, the shards of a node that has ended in order are kept for its next process.
func TestFleetKeepsWhatHasEnded(t *testing.T) {
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", still), join(t, url, "b", still)
	a.put(t)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b.wantAtOnce(t, 0)
	if err := b.Close(); err != nil { // a holds shards
		t.Fatal(err)
	}
	join(t, url, "c", still).wantAtOnce(t, 0)
}

// A failover loses that a node has adopted what another one has left in order: a third node, which
// finds it as it was left, does not adopt it while the second one lives.
func TestFailoverLosesAnAdoptionAtOnce(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinel(t)
	a := join(t, servers.URL(), "a", still)
	ids := a.put(t)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	servers.Master.Do("wait", 1, 5000)
	servers.ShutReplicaOut()
	b := join(t, servers.URL(), "b", still)
	b.wantAtOnce(t, 4)
	servers.FailOver()
	c := join(t, servers.URL(), "c", func(o *Options) { still(o); o.Wait = func(error) {} })
	c.wantAtOnce(t, 0)
	eventually(t, "b has its shards", func() bool {
		b.member.KeepOnce()
		return b.member.Registration().Generation > 1 && b.Health().Err == nil
	})
	c.wantAtOnce(t, 0)
	if n := len(b.member.All()); n != 8 {
		t.Errorf("b holds %d shards", n)
	}
	b.wantFound(t, ids)
}
