package ledgertest

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// A model is what a ledger should hold, by id.
type model map[string]record

type record struct {
	spot recovery.Spot
	data string
}

func (m model) apply(c recovery.Change) {
	if c.To.Place == recovery.Nowhere {
		delete(m, string(c.ID))
		return
	}
	m[string(c.ID)] = record{c.To, string(c.Data)}
}

// diff describes how got differs from m.
func (m model) diff(got model) string {
	var lines []string
	for id, want := range m {
		switch has, ok := got[id]; {
		case !ok:
			lines = append(lines, fmt.Sprintf("%s is missing: %+v", id, want.spot))
		case has != want:
			lines = append(lines, fmt.Sprintf("%s: %+v with %d bytes, want %+v with %d bytes",
				id, has.spot, len(has.data), want.spot, len(want.data)))
		}
	}
	for id, has := range got {
		if _, ok := m[id]; !ok {
			lines = append(lines, fmt.Sprintf("%s should not be there: %+v", id, has.spot))
		}
	}
	slices.Sort(lines)
	if len(lines) > 20 {
		lines = append(lines[:20], fmt.Sprintf("and %d more", len(lines)-20))
	}
	return strings.Join(lines, "\n")
}

// at returns the ids in one place, sorted.
func (m model) at(p recovery.Place) []string {
	var ids []string
	for id, r := range m {
		if r.spot.Place == p {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// read reads all that a ledger holds in every way it has, and fails the test if
// they contradict each other. It may be called once after Adopt, or again.
func (f *fixture) read(l recovery.Ledger) model {
	f.Helper()
	m := f.readPending(l)
	f.readDead(l, m)
	return m
}

// reader is the Memory that a replay fills. It checks the ledger's promises.
type reader struct {
	f      *fixture
	mu     sync.Mutex      // guards the two below
	loaded map[string]bool // ids handed out with Data
	model  model
}

func (r *reader) Load(page []recovery.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range page {
		id := string(e.ID)
		if r.loaded[id] {
			r.f.Errorf("Scan: %s was handed out twice with Data", id)
		}
		r.loaded[id] = true
		r.add(e)
	}
}

func (r *reader) Lock(page []recovery.Entry) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	var locked []int
	seen := map[string]bool{}
	for i, e := range page {
		if id := string(e.ID); !seen[id] && r.model[id] == (record{}) {
			seen[id] = true
			locked = append(locked, i)
		}
	}
	return locked
}

func (r *reader) Resolve(page []recovery.Entry, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range page {
		if found {
			r.add(e)
		}
	}
}

func (r *reader) add(e recovery.Entry) {
	if e.Spot.Place != recovery.Pending || e.Spot.Label != "" {
		r.f.Errorf("the pending record %s stands at %+v", e.ID, e.Spot)
	}
	if e.Shard < 0 || e.Shard >= r.f.terms.Shards {
		r.f.Errorf("%s is in shard %d of %d", e.ID, e.Shard, r.f.terms.Shards)
	}
	r.model[string(e.ID)] = record{e.Spot, string(e.Data)}
}

func (f *fixture) readPending(l recovery.Ledger) model {
	f.Helper()
	r := &reader{f: f, loaded: map[string]bool{}, model: model{}}
	if err := recovery.Replay(f.ctx(), l, r, nil); err != nil {
		f.Fatalf("Replay: %v", err)
	}
	return r.model
}

// readDead adds the dead records to m, as they are listed all together. Each label's list and the
// look-ups by id must give the same.
func (f *fixture) readDead(l recovery.Ledger, m model) {
	f.Helper()
	var all, byLabel []string
	labels := map[string]bool{}
	f.listDead(l, "", recovery.Ref{}, func(e recovery.Entry) bool {
		id := string(e.ID)
		if _, twice := m[id]; twice {
			f.Errorf("%s is listed twice, or pending and dead", id)
		}
		if e.Spot.Place != recovery.Dead {
			f.Errorf("the dead record %s stands at %+v", id, e.Spot)
		}
		m[id] = record{e.Spot, string(e.Data)}
		all = append(all, id)
		labels[e.Spot.Label] = true
		return true
	})
	for label := range labels {
		f.listDead(l, label, recovery.Ref{}, func(e recovery.Entry) bool {
			if e.Spot.Label != label {
				f.Errorf("%s of label %q is listed under %q", e.ID, e.Spot.Label, label)
			}
			byLabel = append(byLabel, string(e.ID))
			return true
		})
	}
	slices.Sort(all)
	slices.Sort(byLabel)
	if !slices.Equal(all, byLabel) {
		f.Errorf("ListDead: all labels together have %d records, each on its own %d", len(all), len(byLabel))
	}
	found := 0
	err := l.GetDead(f.ctx(), all, func(i int, e recovery.Entry) {
		found++
		if got := (record{e.Spot, string(e.Data)}); string(e.ID) != all[i] || got != m[all[i]] {
			f.Errorf("GetDead(%s) gives %s at %+v, listed at %+v", all[i], e.ID, e.Spot, m[all[i]].spot)
		}
	})
	if err != nil || found != len(all) {
		f.Errorf("GetDead found %d of %d that are listed: %v", found, len(all), err)
	}
	for _, id := range m.at(recovery.Pending) {
		if err := l.GetDead(f.ctx(), []string{id}, func(int, recovery.Entry) {
			f.Errorf("%s is pending, and dead by id", id)
		}); err != nil {
			f.Fatalf("GetDead: %v", err)
		}
	}
}

func (f *fixture) listDead(l recovery.Ledger, label string, after recovery.Ref, visit func(recovery.Entry) bool) {
	f.Helper()
	if err := l.ListDead(f.ctx(), label, after, visit); err != nil {
		f.Fatalf("ListDead(%q): %v", label, err)
	}
}
