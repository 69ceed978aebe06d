package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// The start reads who is dead, not what they weigh.
func TestStartWithLargeDeadTasks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	open := func(url string) *redisledger.Ledger {
		l, err := redisledger.Open(redisledger.Options{URL: url, Node: "a", Shards: 4, Log: slog.New(slog.DiscardHandler)})
		rig.Want(t, "redisledger.Open", err, nil)
		return l
	}
	l := open(server.URL())
	terms, err := l.Adopt(t.Context())
	rig.Want(t, "Adopt", err, nil)
	const dead = 200
	for i := range dead {
		id := []byte(fmt.Sprint("dead-", i))
		f := record.Fields{Revision: 1, State: record.Dead, Next: 1000, Topic: []byte("x"), Payload: []byte(`"` + strings.Repeat("y", 65_000) + `"`)}
		data := f.Append(nil)
		pending := recovery.Spot{Place: recovery.Pending, At: 1000}
		for _, c := range []recovery.Change{
			{ID: id, To: pending, Data: data},
			{ID: id, From: pending, To: recovery.Spot{Place: recovery.Dead, At: 1000, Label: "x"}, Data: data},
		} {
			var b recovery.Batch
			b.Add(c)
			rig.Want(t, "Apply", l.Apply(t.Context(), terms.ShardOf(id), &b), nil)
		}
	}
	rig.Want(t, "Close", l.Close(), nil)

	proxy := redistest.NewProxy(t, server.Addr)
	proxy.Throttle(4_000_000) // 13 MB would take 3.3 s
	s, err := Open(t.Context(), open(proxy.URL()), Config{Log: slog.New(slog.DiscardHandler)})
	rig.Want(t, "Open", err, nil)
	defer s.Close(t.Context())
	if st := s.Stats(); st.Total.Dead != dead {
		t.Errorf("%d are dead, want %d", st.Total.Dead, dead)
	}
	if _, err := s.Schedule(t.Context(), Request{ID: "dead-7", Topic: "x"}); err == nil {
		t.Error("a dead id is free")
	}
}

// While the ledger does not tell which tasks are dead, the node delivers, and takes tasks whose
// ids it makes. It refuses ids that may be dead, and calls that would take tasks from there.
func TestDeliveryBeginsBeforeTheDeadAreKnown(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{})
		for range 2 {
			id := a.Create(Request{Topic: "x"})
			if _, err := a.Settle(t.Context(), Verdict{Verb: Bury}, []string{a.PullOwn("x", id)[0].Receipt()}); err != nil {
				t.Fatal(err)
			}
		}
		dead, err := a.Admin().DeadTasks(t.Context(), "x", 0, "")
		rig.Want(t, "DeadTasks", err, nil)
		id := dead.Tasks[0].ID
		a.Crash()

		var release func()
		f.Before = func(m *rig.FaultyMember) {
			release = m.Hold("ScanDead")
			m.Fail("ScanDead", ledgertest.ErrInjected, ledgertest.ErrInjected)
		}
		b := f.Join("a", 1, Config{})
		b.PullOwn("y", b.Create(Request{Topic: "y"}))
		later := b.PullOwn("x", b.Create(Request{Topic: "x"}))[0]
		if _, err := b.Settle(t.Context(), Verdict{Verb: Bury}, []string{later.Receipt()}); err != nil {
			t.Fatal(err)
		}

		ready := b.Readiness()
		if ready.Ready || len(ready.Waiting) != 1 || ready.Waiting[0].What != engine.WaitsForDead {
			t.Errorf("Readiness = %+v, want that it waits for the dead", ready)
		}
		_, err = b.Schedule(t.Context(), Request{ID: id, Topic: "x"})
		rig.Want(t, "Schedule of a dead id", err, ErrReplaying)
		_, err = b.Schedule(t.Context(), Request{ID: "new", Topic: "x"})
		rig.Want(t, "Schedule of another id", err, ErrReplaying)
		_, err = b.Engine().Get(t.Context(), id)
		rig.Want(t, "Get", err, ErrReplaying)
		rig.Want(t, "Cancel", b.Cancel(t.Context(), id), ErrReplaying)
		_, err = b.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{id}})
		rig.Want(t, "Requeue", err, ErrReplaying)
		_, err = b.Admin().DeleteDead(t.Context(), "x", nil)
		rig.Want(t, "DeleteDead", err, ErrReplaying)

		release()
		rig.Pass(time.Second)
		if ready := b.Readiness(); !ready.Ready || len(ready.Waiting) > 0 {
			t.Errorf("Readiness = %+v, want it ready", ready)
		}
		if n := b.Stats().Total.Dead; n != 3 {
			t.Errorf("%d are dead, want 3", n)
		}
		_, err = b.Schedule(t.Context(), Request{ID: id, Topic: "x"})
		rig.Want(t, "Schedule of a dead id", err, ErrDead)
		done, err := b.Admin().Requeue(t.Context(), "x", Requeue{})
		rig.Want(t, "Requeue", err, nil)
		if done.Requeued != 3 {
			t.Errorf("%d came back, want 3", done.Requeued)
		}
		b.Check()
	})
}

// Topics are delivered while the settings of all are still being read: the node asks for those of
// the topics that it meets. The tasks of a topic wait if even that fails.
func TestDeliveryBeginsBeforeTheSettingsAreKnown(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{})
		for _, name := range []string{"a-read", "b-unread"} {
			_, err := a.SetTopic(t.Context(), name, TopicSettings{Lease: time.Minute}, -1)
			rig.Want(t, "SetTopic", err, nil)
		}
		rig.Want(t, "PauseTopic", a.Admin().PauseTopic(t.Context(), "b-unread", true), nil)
		read, unread := a.Create(Request{Topic: "a-read"}), a.Create(Request{Topic: "b-unread"})
		unset := a.Create(Request{Topic: "c-unset"})
		a.Crash()

		var release func()
		f.Before = func(m *rig.FaultyMember) { release = m.Hold("EachSetting but one") }
		b := f.Join("a", 1, Config{})
		b.PullOwn("a-read", read)
		b.PullOwn("b-unread") // is paused, which the node has asked for
		b.PullOwn("c-unset", unset)
		handled := 0
		count := HandlerFunc(func(context.Context, *Delivery) error { handled++; return nil })
		rig.Want(t, "Handle", b.Handle("d-handled", count), nil)
		rig.Want(t, "Handle", b.Handle("d-handled", count), ErrHandled)
		b.Create(Request{Topic: "d-handled"})
		rig.Pass(time.Second)
		if handled != 1 {
			t.Errorf("the handler was called %d times, want once", handled)
		}
		ready := b.Readiness()
		if ready.Ready || len(ready.Waiting) != 1 || ready.Waiting[0].What != engine.WaitsForSettings {
			t.Errorf("Readiness = %+v, want that it waits for the settings", ready)
		}
		_, err := b.Topic("e-unknown")
		rig.Want(t, "Topic", err, ErrReplaying)
		_, err = b.SetTopic(t.Context(), "e-unknown", TopicSettings{}, 7)
		rig.Want(t, "SetTopic of a revision", err, ErrReplaying)
		rig.Want(t, "PauseTopic", b.Admin().PauseTopic(t.Context(), "e-unknown", false), ErrReplaying)
		b.Member.Fail("Setting", ledgertest.ErrInjected, ledgertest.ErrInjected)
		_, err = b.Reserve(t.Context(), "e-unknown", 1, 0, 0)
		rig.Want(t, "Reserve", err, ErrReplaying)
		waits := b.Create(Request{Topic: "e-unknown"})
		_, err = b.SetTopic(t.Context(), "f-set", TopicSettings{Lease: time.Hour}, -1)
		rig.Want(t, "SetTopic", err, nil)

		release()
		rig.Pass(time.Second)
		if ready := b.Readiness(); !ready.Ready || len(ready.Waiting) > 0 {
			t.Errorf("Readiness = %+v, want it ready", ready)
		}
		b.PullOwn("e-unknown", waits)
		if topic, err := b.Topic("f-set"); err != nil || topic.Settings.Lease != time.Hour {
			t.Errorf("Topic = %v, %v, want the settings made meanwhile", topic.Settings.Lease, err)
		}
		rig.Want(t, "PauseTopic", b.Admin().PauseTopic(t.Context(), "b-unread", false), nil)
		b.PullOwn("b-unread", unread)
		b.Check()
	})
}

// What a topic says holds for its tasks although the settings of all topics are read late: the
// place in its window, and what becomes of what fell due while no process ran.
func TestWindowOfSettingsReadLate(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{})
		late := make(map[string]string)
		for _, name := range []string{"a-read", "b-unread"} {
			_, err := a.SetTopic(t.Context(), name, TopicSettings{Spread: time.Hour, Misfire: MisfireSkip}, -1)
			rig.Want(t, "SetTopic", err, nil)
			for late[name] = NewID(); engine.Offset([]byte(late[name]), time.Hour) < 1_800_000; late[name] = NewID() {
			}
			a.Create(Request{ID: late[name], Topic: name, Delay: time.Second})
		}
		a.Crash()
		rig.Pass(10 * time.Second)
		var release func()
		f.Before = func(m *rig.FaultyMember) { release = m.Hold("EachSetting but one") }
		b := f.Join("a", 1, Config{})
		rig.Pass(2 * time.Second)
		release()
		rig.Pass(time.Second)
		b.PullOwn("b-unread") // its place is still to come
		rig.Pass(time.Hour)
		b.PullOwn("a-read", late["a-read"])
		b.PullOwn("b-unread", late["b-unread"])
	})
}

// A lease that runs out before all settings are read follows those of its topic.
func TestLeaseRunsOutBeforeTheSettingsAreKnown(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{})
		for _, name := range []string{"a-read", "b-unread"} {
			_, err := a.SetTopic(t.Context(), name, TopicSettings{Retry: Retry{MaxAttempts: 1}}, -1)
			rig.Want(t, "SetTopic", err, nil)
			a.PullOwn(name, a.Create(Request{Topic: name}))
		}
		rig.Want(t, "Close", a.Close(t.Context()), nil) // parks them
		var release func()
		f.Before = func(m *rig.FaultyMember) { release = m.Hold("EachSetting but one") }
		b := f.Join("a", 1, Config{})
		rig.Pass(time.Minute)
		release()
		rig.Pass(time.Hour)
		b.PullOwn("a-read")
		b.PullOwn("b-unread")
		if n := b.Stats().Total.Dead; n != 2 {
			t.Errorf("%d are dead, want 2", n)
		}
	})
}

// A task dies while the index of the dead is being read, which shows it before its burial is
// confirmed: it counts once.
func TestDiesWhileTheDeadAreRead(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		var m *rig.FaultyMember
		var readOn func()
		f.Before = func(x *rig.FaultyMember) { m = x; readOn = m.Hold("ScanDead") }
		b := f.Join("a", 1, Config{})
		d := b.PullOwn("x", b.Create(Request{Topic: "x"}))[0]
		answer := m.Hold("Applied")
		_, err := b.Settle(t.Context(), Verdict{Verb: Bury}, []string{d.Receipt()})
		rig.Want(t, "Settle", err, nil)
		readOn()
		rig.Pass(time.Second)
		answer()
		rig.Pass(time.Minute)
		n, err := b.Admin().DeleteDead(t.Context(), "x", nil)
		rig.Want(t, "DeleteDead", err, nil)
		if left := b.Stats().Total.Dead; n != 1 || left != 0 {
			t.Errorf("deleted %d, and %d are left; want 1, 0", n, left)
		}
	})
}
