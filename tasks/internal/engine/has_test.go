package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// A countedFinder counts the look-ups in its ledger; its scans wait for the gate.
type countedFinder struct {
	*memfleet.Member
	gate    chan struct{}
	lookups int
}

func (c *countedFinder) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	<-c.gate
	return c.Member.Scan(ctx, page)
}

func (c *countedFinder) FindMany(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	c.lookups++
	for i, id := range ids {
		if err := c.Find(ctx, id, func(e recovery.Entry) { found(i, e) }); err != nil {
			return err
		}
	}
	return nil
}

// A node that is asked during replay which of many ids it has looks them up together.
func TestHasDuringReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := memfleet.New()
		member := fleet.Join("a", 1)
		a, err := Open(t.Context(), member, Config{Node: "a"})
		rig.Want(t, "Open", err, nil)
		var ids []string
		for i := range cluster.HasAtOnce {
			ids = append(ids, fmt.Sprint("t", i))
			if i%2 == 0 {
				_, err := a.Schedule(t.Context(), Request{ID: ids[i], Topic: "x", Delay: time.Hour})
				rig.Want(t, "Schedule", err, nil)
			}
		}
		rig.Want(t, "Close", a.Close(t.Context()), nil)

		l := &countedFinder{Member: fleet.Join("a", 1), gate: make(chan struct{})}
		a, err = Open(t.Context(), l, Config{Node: "a"})
		rig.Want(t, "Open", err, nil)
		defer a.Close(context.Background())
		defer close(l.gate)
		// One of them is in the hands of another caller, who does not find it.
		rig.Mutex(rig.Engine(a)).Lock()
		taken := rig.Engine(a).Store.EnterChecking([]byte("t7"), store.Sought)
		rig.Mutex(rig.Engine(a)).Unlock()
		time.AfterFunc(time.Second, func() {
			rig.Mutex(rig.Engine(a)).Lock()
			defer rig.Mutex(rig.Engine(a)).Unlock()
			rig.Engine(a).UncheckLocked(taken)
		})
		got, err := rig.Cluster(a).HandleHas(t.Context(), "b", cluster.HasQuery{IDs: append(ids, "not a name")})
		rig.Want(t, "answerHas", err, nil)
		for i, has := range got.Has {
			if has != (i < len(ids) && i%2 == 0) {
				t.Fatalf("%d: %v", i, has)
			}
		}
		if l.lookups > 2 {
			t.Errorf("%d look-ups", l.lookups)
		}
	})
}

// A listing counts the changes of the directory and how many dead were listed before the first.
type listing struct {
	*memfleet.Member
	listed, most int
	changes      int
}

func (l *listing) ListDead(ctx context.Context, label string, after recovery.Ref, visit func(e recovery.Entry) bool) error {
	return l.Member.ListDead(ctx, label, after, func(e recovery.Entry) bool {
		l.listed++
		return visit(e)
	})
}

func (l *listing) Update(ctx context.Context, changes []recovery.DirectoryUpdate) ([]recovery.DirectoryEntry, error) {
	l.most = max(l.most, l.listed)
	l.listed = 0
	l.changes += len(changes)
	return l.Member.Update(ctx, changes)
}

// The ids of the dead are registered while they are listed, not all of them at the end.
func TestManyDeadAreRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 5*cluster.UpdatesAtOnce + 7
		fleet := memfleet.New()
		member := fleet.Join("a", 1)
		_, err := member.Adopt(t.Context())
		rig.Want(t, "Adopt", err, nil)
		now := time.Now().UnixMilli()
		for from := 0; from < dead; from += 1000 {
			var b recovery.Batch
			for i := from; i < min(from+1000, dead); i++ {
				f := record.Fields{State: record.Dead, Flags: record.ChosenID, Revision: 1, Due: now, Next: now, Created: now, Topic: []byte("x")}
				b.Add(recovery.Change{
					ID: fmt.Append(nil, "t", i), To: recovery.Spot{Place: recovery.Dead, At: now, Label: "x"}, Data: f.Append(nil),
				})
			}
			rig.Want(t, "Apply", member.Apply(t.Context(), 0, &b), nil)
		}
		l := &listing{Member: fleet.Join("a", 1)}
		a, err := Open(t.Context(), l, Config{Node: "a"})
		rig.Want(t, "Open", err, nil)
		defer a.Close(context.Background())
		l.listed = 0
		b, err := Open(t.Context(), fleet.Join("b", 1), Config{Node: "b"})
		rig.Want(t, "Open", err, nil)
		defer b.Close(context.Background())
		rig.Pass(10 * time.Second)
		if l.changes != dead || l.most > cluster.UpdatesAtOnce {
			t.Errorf("%d were registered, up to %d at once after %d were listed", l.changes, cluster.UpdatesAtOnce, l.most)
		}
		for _, i := range []int{0, dead - 1} {
			task, err := b.Get(t.Context(), fmt.Sprint("t", i))
			if err != nil || task.State != Dead {
				t.Errorf("%+v, %v", task, err)
			}
		}
	})
}
