package tasks_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/lapsehq/lapse/tasks"
)

// exportable schedules tasks at all nodes, so large that an export has many pages, and makes some
// of them die.
func (f *fleet) exportable(n, dead int) (ids []string) {
	f.t.Helper()
	for i := range n {
		at := f.nodes[i%len(f.nodes)]
		req := Request{ID: fmt.Sprint("task-", i), Topic: "x", Delay: time.Hour, Payload: make([]byte, 60_000)}
		switch {
		case i < dead:
			req.Delay = 0
		case i%3 == 0:
			req.ID = "" // which names its shard
		}
		task, err := at.Schedule(f.t.Context(), req)
		if err != nil {
			f.t.Fatal(err)
		}
		ids = append(ids, task.ID)
	}
	pass(time.Second)
	for left := dead; left > 0; {
		ds, err := f.nodes[0].Reserve(f.t.Context(), "x", MaxReserve, time.Minute, 0)
		if err != nil || len(ds) == 0 {
			f.t.Fatalf("%d of the tasks that are to die are left: %v", left, err)
		}
		for _, d := range ds {
			if _, err := f.nodes[0].Settle(f.t.Context(), Verdict{Verb: Bury, Reason: "no use"}, []string{d.Receipt()}); err != nil {
				f.t.Fatal(err)
			}
			left--
		}
	}
	pass(time.Second)
	return ids
}

// While an export runs, nodes end, crash and come, tasks change and are requeued, and each page is
// made by another node.
func TestExportOverNodes(t *testing.T) {
	t.Parallel()
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		ids := f.exportable(240, 60)
		moves := 0
		_, tasks := exportAll(t, f.nodes[0], ExportQuery{}, func(pages int) exporter {
			switch pages {
			case 2:
				f.nodes[1].crash()
				pass(time.Minute) // the others adopt its shards
			case 3:
				f.nodes[1].restart()
				pass(time.Minute) // and give them back
			case 4:
				if _, err := f.nodes[0].Requeue(t.Context(), "x", Requeue{}); err != nil {
					t.Error(err)
				}
			case 5:
				f.nodes[2].stop()
				pass(time.Minute)
				f.nodes[2].restart()
				pass(time.Minute)
			case 7:
				f.join("d", 2, Config{})
			}
			if pages > 200 {
				t.Fatal("the export does not end")
			}
			for _, id := range ids[pages%3 : pages%3+5] {
				if _, err := f.nodes[0].Reschedule(t.Context(), id, Move{Due: time.Now().Add(time.Duration(pages) * time.Hour)}); err == nil {
					moves++
				}
			}
			pass(time.Second)
			return f.nodes[pages%len(f.nodes)]
		})
		all := byID(tasks)
		for _, id := range ids {
			if _, ok := all[id]; !ok {
				t.Errorf("%s is missing", id)
			}
		}
		if moves == 0 {
			t.Error("no task was moved meanwhile")
		}
		t.Logf("%d lines for %d tasks", len(tasks), len(ids))
	})
}

// A node that joins while an export runs takes shards over, requeues their dead tasks, and is gone
// with its log of them before the export looks for requeued tasks. No task is missing.
func TestExportWhileNodeComesAndGoes(t *testing.T) {
	t.Parallel()
	for _, end := range []func(*node){(*node).stop, (*node).crash} {
		fleetBubble(t, 2, func(t *testing.T, f *fleet) {
			ids := f.exportable(240, 60)
			a, b := f.nodes[0], f.nodes[1]
			requeued := 0
			_, tasks := exportAll(t, a, ExportQuery{}, func(pages int) exporter {
				if pages == 4 { // memory has been read, but for its end
					c := f.join("c", 1, Config{})
					c.keeps.Store(true)
					for _, n := range []*node{a, b} {
						want(t, "hand-over", n.handTo(c), nil)
					}
					pass(5 * time.Second)
					done, err := b.Requeue(t.Context(), "x", Requeue{Due: time.Now().Add(time.Hour)})
					want(t, "Requeue", err, nil)
					requeued += done.Requeued
					if c.Stats().Total.Pending == 0 {
						t.Error("the node that has joined holds no task")
					}
					end(c)
					a.adopt(c)
					pass(5 * time.Second)
				}
				return f.nodes[pages%2]
			})
			all := byID(tasks)
			for _, id := range ids {
				if _, ok := all[id]; !ok {
					t.Errorf("%s is missing", id)
				}
			}
			if requeued != 60 {
				t.Errorf("%d tasks were requeued", requeued)
			}
			f.node("c").restart()
			pass(5 * time.Second)
		})
	}
}

// A fleet imports what one node has exported. Every node knows it, and a repetition at another node
// changes nothing.
func TestImportOverNodes(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		one := newRig(t, Config{})
		one.everyKind()
		for i := range 200 {
			one.must(Request{ID: fmt.Sprint("task-", i), Topic: "many", Delay: time.Hour, Group: "g"})
		}
		one.bury("many", "dead-1", "dead-2", "dead-3", "dead-4")
		topics, before := exportAll(t, one, ExportQuery{}, nil)
		for k := range 2 {
			for _, x := range topics {
				if _, err := f.nodes[k].SetTopic(t.Context(), x.Name, x.Settings, -1); err != nil {
					t.Fatal(err)
				}
			}
			results, err := f.nodes[k].Import(t.Context(), before)
			want(t, "Import", err, nil)
			for i, a := range results {
				want(t, "import of "+before[i].ID, a.Err, nil)
				if a.Repeated != (k > 0) {
					t.Errorf("attempt %d: %s was there: %v", k, a.ID, a.Repeated)
				}
			}
			pass(3 * time.Second)
			_, after := exportAll(t, f.nodes[2], ExportQuery{}, nil)
			if diff := cmp.Diff(byID(before), byID(after)); diff != "" {
				t.Errorf("tasks: %s", diff)
			}
		}
		for _, n := range f.nodes {
			for _, id := range []string{"task-1", "dead-1", "delivered", "held"} {
				if task, err := n.Get(t.Context(), id); err != nil || task.ID != id {
					t.Errorf("%s knows of %s: %v", n.name, id, err)
				}
			}
		}
		other := before[0]
		other.Fingerprint++
		results, err := f.nodes[1].Import(t.Context(), []Exported{other})
		want(t, "Import", err, nil)
		want(t, "another task of an id", results[0].Err, ErrExists)
	})
}
