package deadindex

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func has(x *Index, hash uint64) bool {
	_, has := x.Burials.Find(hash)
	return has
}

// A task counts once, however often the ledger lists it, and in the shard that has it.
func TestIndex(t *testing.T) {
	for _, in := range []Shard{nil, {}} {
		x := New(true, 1<<20)
		if !x.Add(in, 1, 7, false) || x.Add(in, 1, 7, false) || !x.Add(in, 2, 8, true) {
			t.Errorf("in %v: a task counts twice, or not at all", in)
		}
		if len(x.IDs) != 1 || len(x.Kept) != 1 {
			t.Errorf("in %v: %d are dead and %d kept, want one each", in, len(x.IDs), len(x.Kept))
		}
		if in != nil && (in[1] != 7 || in[2] != 8) {
			t.Errorf("the topics are %v", in)
		}
		x.Remember(1, 0, []byte("a"), []byte("record"), 0)
		if !has(&x, 1) || has(&x, 2) {
			t.Errorf("in %v: records are missing, or made up", in)
		}
		if !x.Remove(in, 1, false) || in != nil && x.Remove(in, 1, false) {
			t.Errorf("in %v: a task leaves twice, or not at all", in)
		}
		if has(&x, 1) || len(x.IDs) != 0 || len(x.Kept) != 1 {
			t.Errorf("in %v: the wrong task has left", in)
		}
	}
}

// An index of a ledger that loses nothing keeps no records.
func TestNoRecords(t *testing.T) {
	x := New(false, 1<<20)
	x.Add(nil, 1, 7, false)
	x.Remember(1, 0, []byte("a"), []byte("record"), 0)
	if has(&x, 1) || !x.Remove(nil, 1, false) {
		t.Error("it keeps a record, or no task")
	}
}

// What dies during a comparison is not missing.
func TestComparison(t *testing.T) {
	x := New(true, 1<<20)
	c := x.Begin()
	c.Missing[1], c.Missing[2] = struct{}{}, struct{}{}
	x.Add(Shard{}, 1, 7, false)
	if _, missing := c.Missing[2]; len(c.Missing) != 1 || !missing {
		t.Errorf("missing are %v, want 2", c.Missing)
	}
	if x.End(c); len(x.comparisons) != 0 {
		t.Error("the comparison is not over")
	}
	x.Add(Shard{}, 2, 7, false)
	if len(c.Missing) != 1 {
		t.Error("a comparison that is over learns of a task")
	}
}

// A doubt begins one comparison, and is heard by one that runs.
func TestDoubt(t *testing.T) {
	x := New(true, 1<<20)
	if !x.Doubt() || x.Doubt() {
		t.Error("two doubts begin none, or two")
	}
	if !x.Next(true) || x.Next(true) {
		t.Error("one comparison was to be made")
	}
	if !x.Doubt() || x.Next(false) || !x.Doubt() {
		t.Error("an index that is given up cannot begin again")
	}
}

// The oldest may be too early, never too late.
func TestOldest(t *testing.T) {
	var o Oldest
	o.Died(50, true)
	o.Died(60, false)
	if o.At() != 50 || o.IsDue(49) || !o.IsDue(50) {
		t.Errorf("the oldest died at %d, want 50", o.At())
	}
	if o.Left(60); o.IsDue(49) {
		t.Error("a younger one has left, and the ledger is asked")
	}
	if o.Left(50); !o.IsDue(49) {
		t.Error("the oldest has left, and the ledger is not asked")
	}
	o.Ask(true)
	o.Died(20, false) // by a clock that was set back
	if o.Learn(60); o.At() != 20 || o.IsDue(19) {
		t.Errorf("the oldest died at %d, want 20", o.At())
	}
	o.Ask(true)
	o.Died(70, false) // and was not in the list yet
	if o.Learn(None); o.At() != 70 {
		t.Errorf("the oldest died at %d, want 70", o.At())
	}
	o.Ask(true)
	if o.Stop(); !o.IsDue(0) {
		t.Error("the list was not read to its end, and the ledger is not asked again")
	}
	o.Died(30, false) // before the place where the reading goes on
	o.Ask(false)
	if o.Learn(None); o.At() != 30 || o.IsDue(29) {
		t.Errorf("the oldest died at %d, want 30", o.At())
	}
	o.Ask(true)
	o.Left(60) // the answer may be about that one
	if o.Learn(60); !o.IsDue(0) {
		t.Error("the answer is about a task that has left, and the ledger is not asked again")
	}
	if o.Left(None); o.At() != 60 {
		t.Errorf("the oldest died at %d, want 60", o.At())
	}
}

// One line names ten topics at most.
func TestTell(t *testing.T) {
	lost := Lost{}
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	if lost.Tell(log, "n"); out.Len() != 0 {
		t.Errorf("nothing was lost, and the log says %s", out.String())
	}
	for _, name := range "abcdefghijkl" {
		lost[string(name)] = 2
	}
	lost.Tell(log, "n")
	if s := out.String(); !strings.Contains(s, "tasks=24") || !strings.Contains(s, "j: 2") || strings.Contains(s, "k: 2") || !strings.Contains(s, "more_topics=2") {
		t.Errorf("the log says %s", s)
	}
}
