package cluster_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// An exporter is what has a Scheduler's Export.
type exporter interface {
	Admin() Admin
}

// exportAll reads an export to its end. between is called after each page and may return another
// node that makes the next one.
func exportAll(t testing.TB, from exporter, q ExportQuery, between func(pages int) exporter) (topics []ExportedTopic, tasks []Exported) {
	t.Helper()
	for pages := 1; pages <= rig.MostPages; pages++ {
		page, err := from.Admin().Export(t.Context(), q)
		if between != nil && (errors.Is(err, ErrUnavailable) || errors.Is(err, ErrReplaying)) {
			from = between(pages)
			continue
		}
		if err != nil {
			t.Fatalf("page %d of the export: %v", pages, err)
		}
		topics, tasks = append(topics, page.Topics...), append(tasks, page.Tasks...)
		if page.Begins {
			tasks = nil
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			c := page.Counts
			if c.Pending+c.Dead+c.Finished != len(tasks) || c.Topics != len(topics) || c.Unreadable != 0 {
				t.Errorf("the export counts %+v; it has %d tasks and %d topics", c, len(tasks), len(topics))
			}
			return topics, tasks
		}
		if between != nil {
			from = between(pages)
		}
	}
	t.Fatal("the export does not end")
	return nil, nil
}

func byID(tasks []Exported) map[string]Exported {
	all := make(map[string]Exported, len(tasks))
	for _, x := range tasks {
		all[x.ID] = x
	}
	return all
}

// everyKind makes a task of each kind.
func everyKind(r *rig.Rig) {
	r.T.Helper()
	r.MustSetTopic("x", TopicSettings{KeepFinished: time.Hour, Retry: Retry{MaxAttempts: 2, MinBackoff: time.Minute, MaxBackoff: time.Minute}, Lease: time.Minute})
	r.MustSetTopic("paused", TopicSettings{Paused: true, Weight: 7, Concurrency: 3})
	r.Must(Request{ID: "later", Topic: "y", Delay: time.Hour, Payload: []byte(" {\"n\": 1.50}"), Headers: map[string]string{"b": "2", "a": "1"}, Group: "g", MaxLateness: 1500 * time.Millisecond})
	r.Must(Request{Topic: "y", Delay: time.Hour, Payload: []byte{0, 0xff}})
	r.Must(Request{ID: "held", Topic: "y", Delay: 2 * time.Hour})
	if _, err := r.Hold(r.T.Context(), "held"); err != nil {
		r.T.Fatal(err)
	}
	rig.Pass(time.Second)
	if _, err := r.Reschedule(r.T.Context(), "later", Move{Due: time.Now().Add(3 * time.Hour)}); err != nil {
		r.T.Fatal(err)
	}
	for _, id := range []string{"exhausted", "exhausted-again"} {
		for range 2 {
			r.Must(Request{ID: id, Topic: "x"})
			r.SettleOne(Verdict{Verb: Release, Reason: "not now"}, r.Pull("x", id)[0])
			rig.Pass(2 * time.Minute)
		}
	}
	r.SettleOne(Verdict{Verb: Release, Reason: "not now"}, r.One("retrying", "x"))
	r.Bury("x", "buried")
	r.Ack(r.One("delivered", "x"))
	r.Must(Request{ID: "cancelled", Topic: "x", Delay: time.Hour})
	if err := r.Cancel(r.T.Context(), "cancelled"); err != nil {
		r.T.Fatal(err)
	}
	r.Must(Request{ID: "ready", Topic: "paused"})
	r.One("delivering", "z")
	ownDeliveries(r)
	rig.Pass(time.Second)
}

// ownDeliveries makes tasks with a delivery of their own, if there is a way for it. One is dead,
// and followed by another.
func ownDeliveries(r *rig.Rig) {
	r.T.Helper()
	if len(r.Cfg.Ways) == 0 {
		return
	}
	set := rig.Allowing("courier")
	set.ConcurrencyPerGroup, set.OnDead, set.KeepFinished = 2, OnDead{Topic: "mourners", Delay: 10 * time.Hour}, time.Hour
	r.MustSetTopic("own", set)
	once := Retry{MaxAttempts: 1, MaxAge: 90 * time.Minute, MinBackoff: 1500 * time.Millisecond, MaxBackoff: time.Hour}
	oslo := &Target{Settings: rig.Own("oslo").Settings, Retry: once}
	r.Must(Request{ID: "own-later", Topic: "own", Delay: 3 * time.Hour, Target: oslo})
	r.Must(Request{ID: "own-finished", Topic: "own", Target: oslo})
	r.Must(Request{ID: "own-retry", Topic: "own", Delay: 3 * time.Hour, Target: &Target{Retry: once}})
	r.Must(Request{ID: "own-dead", Topic: "own", Target: &Target{Settings: rig.Own("bern").Settings, Retry: once}})
}

// What is exported and imported elsewhere is exported there as it was, and a second import changes
// nothing.
func TestImportKeepsEverything(t *testing.T) {
	noBern := func(_ *Delivery, to string) error {
		if to == "bern" {
			return errors.New("no such address")
		}
		return nil
	}
	rig.Bubble(t, Config{Ways: []Way{&rig.Courier{KindName: "courier", Fail: noBern}}}, func(t *testing.T, r *rig.Rig) {
		everyKind(r)
		topics, before := exportAll(t, r, ExportQuery{}, nil)
		if len(before) != 16 || len(topics) != 3 {
			t.Fatalf("exported %d tasks of 16, %d topics of 3", len(before), len(topics))
		}
		if x := byID(before)["own-dead"]; x.State != Dead || x.Target == nil || x.Target.Receiver != "city of bern" {
			t.Errorf("exported %+v, %+v", x, x.Target)
		}
		c := &rig.Courier{KindName: "courier", Fail: noBern}
		other := rig.New(t, Config{Ways: []Way{c}})
		for range 2 {
			for _, x := range topics {
				other.MustSetTopic(x.Name, x.Settings)
			}
			results, err := other.Admin().Import(t.Context(), before)
			rig.Want(t, "Import", err, nil)
			for i, a := range results {
				rig.Want(t, "import of "+before[i].ID, a.Err, nil)
				if a.ID != before[i].ID {
					t.Errorf("%s is called %s", before[i].ID, a.ID)
				}
			}
			alsoTopics, after := exportAll(t, other, ExportQuery{}, nil)
			if diff := cmp.Diff(topics, alsoTopics); diff != "" {
				t.Errorf("topics: %s", diff)
			}
			if diff := cmp.Diff(byID(before), byID(after)); diff != "" {
				t.Errorf("tasks: %s", diff)
			}
			other.Crash()
			rig.Pass(time.Second)
		}
		rig.WantCounted(t, other.Engine())

		// Tasks go where they said. The dead one was followed at the source.
		other.WantFollowUps("imported", "own", 1, 0, 0, 0)
		other.Only("mourners")
		c.Want(t, "imported")
		_, err := other.Fire(t.Context(), "own-later")
		rig.Want(t, "Fire", err, nil)
		rig.Pass(time.Second)
		c.Want(t, "fired", "own-later to oslo")

		// A repeated request finds the imported task, one for another task is refused.
		again, err := other.Schedule(t.Context(), Request{ID: "later", Topic: "y", Delay: time.Hour, Payload: []byte(" {\"n\": 1.50}"), Headers: map[string]string{"b": "2", "a": "1"}, Group: "g", MaxLateness: 1500 * time.Millisecond})
		if err != nil || !again.Repeated {
			t.Errorf("the repeated request: %+v, %v", again, err)
		}
		_, err = other.Schedule(t.Context(), Request{ID: "held", Topic: "y"})
		rig.Want(t, "another task of the id", err, ErrExists)
		if held, err := other.Resume(t.Context(), "held"); err != nil || time.Until(held.Next) != 2*time.Hour {
			t.Errorf("the held task is resumed for %v: %v", held.Next, err)
		}
		if n, err := rig.Requeued(other.Admin().Requeue(t.Context(), "x", Requeue{})); n != 3 || err != nil {
			t.Errorf("requeued %d: %v", n, err)
		}
	})
}

// A task of another content, or under the id of a dead task, is not replaced.
func TestImportReplacesNothing(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "pending", Topic: "x", Delay: time.Hour})
		r.Bury("x", "dead")
		_, mine := exportAll(t, r, ExportQuery{}, nil)
		theirs := byID(mine)
		for _, state := range []State{Pending, Dead, Finished} {
			for _, id := range []string{"pending", "dead"} {
				x := theirs[id]
				x.Fingerprint++
				x.State, x.Died, x.Finished = state, x.Created, x.Created
				x.Reason, x.Outcome = "", ""
				results, err := r.Admin().Import(t.Context(), []Exported{x})
				rig.Want(t, "Import", err, nil)
				rig.Want(t, fmt.Sprint(state, " over ", id), results[0].Err, ErrExists)
			}
		}
		_, after := exportAll(t, r, ExportQuery{}, nil)
		if diff := cmp.Diff(theirs, byID(after)); diff != "" {
			t.Error(diff)
		}
	})
}

// Wrong fields are named, and nothing is imported.
func TestImportRefuses(t *testing.T) {
	rig.Bubble(t, Config{MaxPayload: 100}, func(t *testing.T, r *rig.Rig) {
		now := time.Now()
		good := Exported{Task: Task{ID: "a", Topic: "x", State: Pending, Due: now, Next: now, Created: now, Revision: 1}}
		for field, spoil := range map[string]func(x *Exported){
			"id":           func(x *Exported) { x.ID = "" },
			"topic":        func(x *Exported) { x.Topic = "a b" },
			"group":        func(x *Exported) { x.Group = "!" },
			"state":        func(x *Exported) { x.State = Retrying },
			"revision":     func(x *Exported) { x.Revision = 0 },
			"attempt":      func(x *Exported) { x.Attempt = -1 },
			"due_at":       func(x *Exported) { x.Due = time.Unix(-1, 0) },
			"next_at":      func(x *Exported) { x.Next = now.Add(-time.Second) },
			"held_at":      func(x *Exported) { x.State, x.HeldAt = Held, time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC) },
			"reason":       func(x *Exported) { x.State, x.Died, x.Reason = Dead, now, "old age" },
			"outcome":      func(x *Exported) { x.State, x.Finished, x.Outcome = Finished, now, "lost" },
			"max_lateness": func(x *Exported) { x.MaxLateness = 1 },
			"headers":      func(x *Exported) { x.Headers = map[string]string{"A b": ""} },
			"attempts":     func(x *Exported) { x.Attempts = make([]Attempt, MaxAttempts+1) },
		} {
			x := good
			spoil(&x)
			results, err := r.Admin().Import(t.Context(), []Exported{x})
			rig.Want(t, "Import", err, nil)
			var invalid *InvalidError
			if !errors.As(results[0].Err, &invalid) || invalid.Fields[0].Field != field {
				t.Errorf("a wrong %s: %v", field, results[0].Err)
			}
		}
		large := good
		large.Payload = make([]byte, 101)
		other := good
		other.Fingerprint++
		results, _ := r.Admin().Import(t.Context(), []Exported{large, other})
		rig.Want(t, "a large payload", results[0].Err, ErrTooLarge)
		rig.Want(t, "the id of the one before", results[1].Err, ErrInvalid)
		_, err := r.Admin().Export(t.Context(), ExportQuery{Cursor: "x"})
		rig.Want(t, "a wrong cursor", err, ErrInvalid)
		_, err = r.Admin().Export(t.Context(), ExportQuery{Topics: []string{"*x"}})
		rig.Want(t, "a wrong topic", err, ErrInvalid)
	})
}

// Only the topics that are asked for are exported.
func TestExportOfTopics(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		everyKind(r)
		topics, tasks := exportAll(t, r, ExportQuery{Topics: []string{"pa*", "z"}}, nil)
		if len(topics) != 1 || len(tasks) != 2 {
			t.Errorf("exported %d topics and %d tasks", len(topics), len(tasks))
		}
	})
}

// A task that was imported and is finished since is not imported again while its end is remembered.
// Another task of its id is.
func TestImportOfFinished(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		now := time.Now()
		var all []Exported
		for _, id := range []string{"delivered", "cancelled", "deleted"} {
			all = append(all, Exported{Task: Task{ID: id, Topic: "x", State: Pending, Due: now, Next: now, Created: now.Add(-time.Hour), Revision: 1}})
		}
		all[1].Due, all[1].Next = now.Add(time.Hour), now.Add(time.Hour)
		all[2].State, all[2].Died = Dead, now
		importing := func(want bool) {
			t.Helper()
			results, err := r.Admin().Import(t.Context(), all)
			for i, a := range results {
				if err != nil || a.Err != nil || a.Repeated != want {
					t.Fatalf("import of %s: %+v, %v", all[i].ID, a, err)
				}
			}
		}
		importing(false)
		r.Ack(r.Pull("x", "delivered")[0])
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		rig.Want(t, "Cancel of a dead task", r.Cancel(t.Context(), "deleted"), nil)
		rig.Pass(time.Second)
		importing(true)
		r.Pull("x")
		for i := range all {
			all[i].Created = now
		}
		importing(false)
	})
}

// An import whose caller has left lands, and a repeated one finds what it has brought.
func TestImportWithoutAnAnswer(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		now := time.Now()
		all := []Exported{
			{Task: Task{ID: "pending", Topic: "x", State: Pending, Due: now.Add(time.Hour), Next: now.Add(time.Hour), Created: now, Revision: 1}},
			{Task: Task{ID: "dead", Topic: "x", State: Dead, Due: now, Died: now, Created: now, Revision: 1}},
		}
		_, release := r.Faulty.Hold(ledgertest.Apply)
		results, err := r.Admin().Import(t.Context(), all)
		rig.Want(t, "Import", err, nil)
		for _, a := range results {
			rig.Want(t, a.ID, a.Err, ErrUnknown)
		}
		release()
		rig.Pass(time.Second)
		r.InLedger("pending", recovery.Pending)
		r.InLedger("dead", recovery.Dead)
		results, err = r.Admin().Import(t.Context(), all)
		rig.Want(t, "Import", err, nil)
		for _, a := range results {
			if a.Err != nil || !a.Repeated {
				t.Errorf("imported again: %+v", a)
			}
		}
	})
}

// What the ledger has no room for is refused, and nothing of it stays in memory.
func TestImportWithoutRoom(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		now := time.Now()
		all := []Exported{
			{Task: Task{ID: "pending", Topic: "x", State: Pending, Due: now.Add(time.Hour), Next: now.Add(time.Hour), Created: now, Revision: 1}},
			{Task: Task{ID: "dead", Topic: "x", State: Dead, Due: now, Died: now, Created: now, Revision: 1}},
			{Task: Task{ID: "finished", Topic: "x", State: Finished, Due: now, Finished: now, Created: now, Revision: 1}},
		}
		r.MustSetTopic("x", TopicSettings{KeepFinished: time.Hour})
		r.Faulty.SetFull(true)
		results, err := r.Admin().Import(t.Context(), all)
		rig.Want(t, "Import", err, nil)
		for _, a := range results {
			rig.Want(t, a.ID, a.Err, ErrUnavailable)
		}
		r.Faulty.SetFull(false)
		rig.Pass(2 * time.Second)
		results, err = r.Admin().Import(t.Context(), all)
		rig.Want(t, "Import", err, nil)
		for _, a := range results {
			if a.Err != nil || a.Repeated {
				t.Errorf("imported: %+v", a)
			}
		}
		r.Restart()
		rig.Pass(time.Second)
		if _, tasks := exportAll(t, r, ExportQuery{}, nil); len(tasks) != 3 {
			t.Errorf("there are %d tasks", len(tasks))
		}
	})
}

// An imported task whose deadline has passed is misfired.
func TestImportOfMisfired(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("skips", TopicSettings{Misfire: MisfireSkip})
		r.MustSetTopic("coalesces", TopicSettings{Misfire: MisfireCoalesce})
		now := time.Now()
		task := func(id, topic, group string, due time.Time, attempt int) Exported {
			return Exported{Task: Task{ID: id, Topic: topic, Group: group, State: Pending, Due: due, Next: due, Created: now.Add(-time.Hour), Revision: 1, Attempt: attempt}}
		}
		results, err := r.Admin().Import(t.Context(), []Exported{
			task("late", "skips", "", now.Add(-time.Minute), 0), task("tried", "skips", "", now.Add(-time.Minute), 1),
			task("early", "coalesces", "g", now.Add(-time.Minute), 0), task("newest", "coalesces", "g", now.Add(-time.Second), 0),
		})
		rig.Want(t, "Import", err, nil)
		for _, a := range results {
			rig.Want(t, a.ID, a.Err, nil)
		}
		rig.Pass(time.Second)
		r.Pull("skips", "tried")
		r.Pull("coalesces")
		rig.Pass(time.Second)
		r.Pull("coalesces", "newest")
	})
}

// A task that is there from the beginning of an export to its end is in it, whatever becomes of it
// meanwhile.
func TestExportMissesNothing(t *testing.T) {
	t.Parallel()
	r, seed := rig.Disturbing(t)
	const tasks = 3000
	payload := make([]byte, 12_000) // so that an export has some ten pages
	for i := range tasks {
		r.Must(Request{ID: fmt.Sprint("task-", i), Topic: "x", Delay: time.Duration(i%2) * time.Hour, Payload: payload})
	}
	stop := r.Disturb(seed, 4, tasks)
	// Until some have failed and died.
	st := r.Counts("x")
	for n := 0; n < 3 || n < 1000 && (st.Failed == 0 || st.Died == 0); n++ {
		_, exported := exportAll(t, r, ExportQuery{}, nil)
		all := byID(exported)
		for i := range tasks {
			if _, ok := all[fmt.Sprint("task-", i)]; !ok {
				t.Errorf("task-%d is missing among %d", i, len(exported))
			}
		}
		st = r.Counts("x")
	}
	stop()
	if st.Failed == 0 || st.Died == 0 {
		t.Errorf("nothing happened meanwhile: %+v", st)
	}
}
