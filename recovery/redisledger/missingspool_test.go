package redisledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// opens has a node open a spool, and compares what is missing then, as another node sees it.
func (m *fleetNode) opens(t *testing.T, other *fleetNode, spool string, want ...string) {
	t.Helper()
	if err := m.OpenSpool(t.Context(), spool); err != nil {
		t.Fatal(err)
	}
	m.wantMissing(t, other, want...)
}

func (m *fleetNode) wantMissing(t *testing.T, other *fleetNode, want ...string) {
	t.Helper()
	nodes, err := other.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		if nodes[i].Name != m.opts.Node {
			continue
		}
		if diff := cmp.Diff(want, nodes[i].MissingSpools); diff != "" && len(want)+len(nodes[i].MissingSpools) > 0 {
			t.Errorf("missing spools of %s (-want +got):\n%s", m.opts.Node, diff)
		}
	}
	warned := slices.ContainsFunc(other.Health().Warnings, func(w string) bool {
		return strings.Contains(w, "node "+m.opts.Node+" was started without its former spool")
	})
	if warned != (len(want) > 0) {
		t.Errorf("the warnings are %q", other.Health().Warnings)
	}
}

// A process that has another spool than the former one knows that one to be missing, unless it was
// left empty. It stays so through restarts and losses of the registry.
func TestSpoolGoesMissing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var log lines
	a := join(t, server.URL(), "a", func(o *Options) { still(o); o.Log = log.logger() })
	b := join(t, server.URL(), "b", still)
	a.opens(t, b, "one")
	a.crash()
	a = a.lives.join(t)
	a.opens(t, b, "one")
	if log.has("another spool") {
		t.Error("it warns of the same spool")
	}
	a.crash()
	a = a.lives.join(t)
	a.opens(t, b, "two", "one")
	if !log.has("level=WARN", "another spool", "missing=one") {
		t.Errorf("it does not warn: %s", log.String())
	}
	server.Do("flushall")
	a.member.KeepOnce()
	b.member.KeepOnce()
	a.wantMissing(t, b, "one")
	if err := a.EmptiedSpool(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.crash()
	a = a.lives.join(t)
	a.opens(t, b, "", "one")
	a.opens(t, b, "one")
	a.opens(t, b, "", "one")
	if err := b.GiveUpSpools(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	a.wantMissing(t, b)
	a.opens(t, b, "three")
	a.opens(t, b, "four", "three")
	if err := a.GiveUpSpools(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	a.wantMissing(t, b)
}

// An entry that cannot be read stands for the spool that the node opens, or for one that is
// missing.
func TestUnreadSpool(t *testing.T) {
	t.Parallel()
	for spool, missing := range map[string][]string{"one": nil, "": {"?"}} {
		server := redistest.Start(t)
		a := join(t, server.URL(), "a", nil)
		a.opens(t, a, "one")
		a.crash()
		server.Do("hset", a.keys.Nodes(), "a", "damaged")
		a = a.lives.join(t)
		a.opens(t, a, spool, missing...)
	}
}

// Of many missing spools the names of some are kept, and only giving up ends the doubt.
func TestManyMissingSpools(t *testing.T) {
	a := join(t, redistest.Start(t).URL(), "a", still)
	var want []string
	for n := range 20 {
		a.opens(t, a, fmt.Sprint("spool-", n), want...)
		if want = append(want, fmt.Sprint("spool-", n)); len(want) > 16 {
			want = append(want[:15], "*")
		}
	}
	for n := range 15 {
		if err := a.OpenSpool(t.Context(), fmt.Sprint("spool-", n)); err != nil {
			t.Fatal(err)
		}
		if err := a.EmptiedSpool(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	nodes, err := a.Nodes(t.Context())
	if err != nil || !slices.Contains(nodes[0].MissingSpools, "*") {
		t.Errorf("missing: %q, %v", nodes[0].MissingSpools, err)
	}
	if err := a.GiveUpSpools(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	a.wantMissing(t, a)
}
