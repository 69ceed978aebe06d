package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// put writes a record into a shard behind the node's back.
func put(m *rig.Node, shard int, id string, f record.Fields) {
	m.T.Helper()
	var b recovery.Batch
	b.Add(recovery.Change{ID: []byte(id), To: recovery.Spot{Place: recovery.Pending, At: f.Next}, Data: f.Append(nil)})
	if err := m.Member.Apply(m.T.Context(), shard, &b); err != nil {
		m.T.Fatal("Apply:", err)
	}
}

// copies counts the records of an id.
func copies(m *rig.Node, id string) (n int) {
	m.T.Helper()
	rig.Want(m.T, "Find", m.Member.Find(m.T.Context(), id, func(recovery.Entry) { n++ }), nil)
	return n
}

// Where an id has records in two shards, the next process keeps the newer one and deletes
// the other, in whichever order replay comes across them.
func TestTwins(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		now := time.Now().UnixMilli()
		var ids []string
		for i := range 60 {
			id := fmt.Sprint("x-", i)
			ids = append(ids, id)
			own := a.Engine().Terms.ShardOf([]byte(id))
			other := (own + 1) % rig.FleetShards
			first, second := own, other
			if i%2 == 0 {
				first, second = other, own
			}
			rec := func(created int64, revision uint32, text string) record.Fields {
				due := now + time.Hour.Milliseconds() + int64(i)
				return record.Fields{Flags: record.ChosenID, Revision: revision, Due: due, Next: due, Created: created, Topic: []byte("t"), Payload: []byte(text)}
			}
			put(a, first, id, rec(now, 7, `"older"`))
			if i%3 == 0 {
				put(a, second, id, rec(now, 8, `"newer"`)) // of the same creation
			} else {
				put(a, second, id, rec(now+5, 1, `"newer"`))
			}
		}
		a.Crash()
		a.Restart()
		rig.Pass(10 * time.Second)
		for _, id := range ids {
			if got := a.MustGet(id); string(got.Payload) != `"newer"` {
				t.Errorf("%s is the %s one", id, got.Payload)
			}
			if n := copies(a, id); n != 1 {
				t.Errorf("%s has %d records", id, n)
			}
			rig.Want(t, "Cancel", a.Cancel(t.Context(), id), nil)
			if n := copies(a, id); n != 0 {
				t.Errorf("%s has %d records after its cancel", id, n)
			}
		}
		a.Check()
		a.Crash()
		a.Restart()
		rig.Pass(10 * time.Second)
		for _, id := range ids {
			_, err := a.Get(t.Context(), id)
			rig.Want(t, "Get", err, ErrNotFound)
		}
	})
}

// A loss brings a finished task back whose id was used again in another shard: its record is
// deleted there, and is not delivered by the next owner of the shard.
func TestLostEndOfAnIDInAnotherShard(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		before := time.Now()
		rig.Pass(time.Second)
		a.Must(Request{ID: "x", Topic: "t", Delay: time.Hour, Payload: []byte(`"again"`)})
		other := (a.Engine().Terms.ShardOf([]byte("x")) + 1) % rig.FleetShards
		due := before.Add(time.Minute).UnixMilli()
		put(a, other, "x", record.Fields{Flags: record.ChosenID, Revision: 1, Due: due, Next: due, Created: before.UnixNano(), Topic: []byte("t"), Payload: []byte(`"finished"`)})
		a.Engine().Rewound(a.Member, other)
		rig.Pass(time.Second)
		if n := copies(a, "x"); n != 1 {
			t.Errorf("%d records", n)
		}
		if got := a.MustGet("x"); string(got.Payload) != `"again"` {
			t.Errorf("the task is %s", got.Payload)
		}
		a.Check()
	})
}

// The same while something is under way with the task of that id: the shard does not change hands
// before its record is deleted.
func TestLostEndIsDeletedBeforeAHandOver(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		before := time.Now()
		rig.Pass(time.Second)
		a.Must(Request{ID: "x", Topic: "t", Delay: time.Hour})
		other := (a.Engine().Terms.ShardOf([]byte("x")) + 1) % rig.FleetShards
		due := before.Add(time.Second).UnixMilli()
		put(a, other, "x", record.Fields{Flags: record.ChosenID, Revision: 1, Due: due, Next: due, Created: before.UnixNano(), Topic: []byte("t")})
		release := a.Member.Hold("Apply")
		go func() { _, _ = a.Reschedule(t.Context(), "x", Move{Delay: rig.Ptr(2 * time.Hour)}) }()
		rig.Pass(10 * time.Millisecond)
		a.Engine().Rewound(a.Member, other)
		rig.Pass(time.Second)
		rig.Want(t, "hand-over", a.Engine().ReleaseShard(t.Context(), a.Engine().Fleet.ShardID(other), b.Name), ErrUnavailable)
		release()
		rig.Pass(time.Minute)
		if n := copies(a, "x"); n != 1 {
			t.Errorf("%d records", n)
		}
		if n := a.Stats().Total.Ready + b.Stats().Total.Ready; n != 0 {
			t.Errorf("%d tasks are ready", n)
		}
	})
}

// A newer record waits for the delivery of the older one, and is delivered after it; a
// cancel is about both.
func TestTwinsOfWhatIsDelivered(t *testing.T) {
	for name, cancels := range map[string]bool{"acknowledged": false, "cancelled": true} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
				a := f.Nodes[0]
				a.Must(Request{ID: "x", Topic: "t", Payload: []byte(`"older"`)})
				rig.Pass(time.Millisecond)
				ds, err := a.Reserve(t.Context(), "t", 1, 0, 0)
				if err != nil || len(ds) != 1 {
					t.Fatal(ds, err)
				}
				due := time.Now().Add(time.Minute).UnixMilli()
				newer := record.Fields{Flags: record.ChosenID, Revision: 1, Due: due, Next: due, Created: time.Now().Add(time.Millisecond).UnixNano(), Topic: []byte("t"), Payload: []byte(`"newer"`)}
				shard := (a.Engine().Terms.ShardOf([]byte("x")) + 1) % rig.FleetShards
				put(a, shard, "x", newer)
				(*engine.Memory)(a.Engine()).Lock([]recovery.Entry{{Shard: shard, ID: []byte("x"), Spot: recovery.Spot{Place: recovery.Pending, At: due}}})
				rig.Pass(time.Second)
				verdict := Verdict{Verb: Ack}
				if cancels {
					verdict = Verdict{Verb: Release, Delay: rig.Ptr(time.Minute)}
				}
				answers, err := a.Settle(t.Context(), verdict, []string{ds[0].Receipt()})
				if err != nil || answers[0].Err != nil {
					t.Fatal(answers, err)
				}
				if cancels {
					rig.Want(t, "Cancel", a.Cancel(t.Context(), "x"), nil)
				}
				rig.Pass(2 * time.Minute)
				ds, err = a.Reserve(t.Context(), "t", 2, 0, 0)
				rig.Want(t, "Reserve", err, nil)
				if cancels != (len(ds) == 0) || len(ds) > 0 && string(ds[0].Payload) != `"newer"` {
					t.Errorf("delivered: %+v", ds)
				}
				a.Check()
			})
		})
	}
}

// The older record's task is finished before replay meets the other record. That one is delivered
// if it was created later, is known to all nodes until then, and is deleted if it was not.
func TestTwinsOfWhatIsFinished(t *testing.T) {
	for name, row := range map[string]struct {
		later   int64 // by how many milliseconds the other one was created later
		cancels bool
		stays   bool
	}{
		"created later":         {later: 1, stays: true},
		"the same creation":     {},
		"created earlier":       {later: -1},
		"created and cancelled": {later: 1, cancels: true},
	} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
				a, b := f.Nodes[0], f.Nodes[1]
				task := a.Must(Request{ID: "x", Topic: "t", Payload: []byte(`"first"`)})
				rig.Pass(time.Millisecond)
				if row.cancels {
					rig.Want(t, "Cancel", a.Cancel(t.Context(), "x"), nil)
				} else {
					ds, err := a.Reserve(t.Context(), "t", 1, 0, 0)
					if err != nil || len(ds) != 1 {
						t.Fatal(ds, err)
					}
					answers, err := a.Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[0].Receipt()})
					if err != nil || answers[0].Err != nil || !answers[0].Recorded {
						t.Fatal(answers, err)
					}
				}
				due := time.Now().Add(time.Minute).UnixMilli()
				other := record.Fields{Flags: record.ChosenID, Revision: 1, Due: due, Next: due, Created: task.Created.UnixNano() + row.later*1e6, Topic: []byte("t"), Payload: []byte(`"other"`)}
				e := recovery.Entry{Shard: (a.Engine().Terms.ShardOf([]byte("x")) + 1) % rig.FleetShards, ID: []byte("x"), Spot: recovery.Spot{Place: recovery.Pending, At: due}}
				put(a, e.Shard, "x", other)
				m := (*engine.Memory)(a.Engine())
				if locked := m.Lock([]recovery.Entry{e}); len(locked) != 1 {
					t.Fatalf("locked: %v", locked)
				}
				e.Data = other.Append(nil)
				m.Resolve([]recovery.Entry{e}, true)
				rig.Pass(time.Second)
				for _, n := range []*rig.Node{a, b} {
					got, err := n.Get(t.Context(), "x")
					if row.stays && (err != nil || string(got.Payload) != `"other"`) {
						t.Errorf("Get at %s = %+v, %v", n.Name, got, err)
					} else if !row.stays {
						rig.Want(t, "Get at "+n.Name, err, ErrNotFound)
					}
				}
				lines := 0
				if row.stays {
					lines = 1
				}
				if n := f.Log.Count("newer duplicate record"); n != lines {
					t.Errorf("%d lines of the log tell of it:\n%s", n, f.Log.All())
				}
				rig.Pass(2 * time.Minute)
				ds, err := a.Reserve(t.Context(), "t", 2, 0, 0)
				rig.Want(t, "Reserve", err, nil)
				if row.stays != (len(ds) == 1) || row.stays && string(ds[0].Payload) != `"other"` {
					t.Errorf("delivered: %+v", ds)
				}
				if n := copies(a, "x"); !row.stays && n != 0 {
					t.Errorf("%d records are left", n)
				}
				a.Check()
			})
		})
	}
}
