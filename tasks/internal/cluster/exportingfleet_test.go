package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// exportable schedules tasks at all nodes, so large that an export has many pages, and makes some
// of them die.
func exportable(f *rig.Fleet, n, dead int) (ids []string) {
	f.T.Helper()
	for i := range n {
		at := f.Nodes[i%len(f.Nodes)]
		req := Request{ID: fmt.Sprint("task-", i), Topic: "x", Delay: time.Hour, Payload: make([]byte, 60_000)}
		switch {
		case i < dead:
			req.Delay = 0
		case i%3 == 0:
			req.ID = "" // which names its shard
		}
		task, err := at.Schedule(f.T.Context(), req)
		if err != nil {
			f.T.Fatal(err)
		}
		ids = append(ids, task.ID)
	}
	rig.Pass(time.Second)
	for left := dead; left > 0; {
		ds, err := f.Nodes[0].Reserve(f.T.Context(), "x", MaxReserve, time.Minute, 0)
		if err != nil || len(ds) == 0 {
			f.T.Fatalf("%d of the tasks that are to die are left: %v", left, err)
		}
		for _, d := range ds {
			if _, err := f.Nodes[0].Settle(f.T.Context(), Verdict{Verb: Bury, Reason: "no use"}, []string{d.Receipt()}); err != nil {
				f.T.Fatal(err)
			}
			left--
		}
	}
	rig.Pass(time.Second)
	return ids
}

// While an export runs, nodes end, crash and come, tasks change and are requeued, and each page is
// made by another node.
func TestExportOverNodes(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		ids := exportable(f, 240, 60)
		moves := 0
		_, tasks := exportAll(t, f.Nodes[0], ExportQuery{}, func(pages int) exporter {
			switch pages {
			case 2:
				f.Nodes[1].Crash()
				rig.Pass(time.Minute) // the others adopt its shards
			case 3:
				f.Nodes[1].Restart()
				rig.Pass(time.Minute) // and give them back
			case 4:
				if _, err := f.Nodes[0].Admin().Requeue(t.Context(), "x", Requeue{}); err != nil {
					t.Error(err)
				}
			case 5:
				f.Nodes[2].Stop()
				rig.Pass(time.Minute)
				f.Nodes[2].Restart()
				rig.Pass(time.Minute)
			case 7:
				f.Join("d", 2, Config{})
			}
			if pages > 200 {
				t.Fatal("the export does not end")
			}
			for _, id := range ids[pages%3 : pages%3+5] {
				if _, err := f.Nodes[0].Reschedule(t.Context(), id, Move{Due: time.Now().Add(time.Duration(pages) * time.Hour)}); err == nil {
					moves++
				}
			}
			rig.Pass(time.Second)
			return f.Nodes[pages%len(f.Nodes)]
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
	for _, end := range []func(*rig.Node){(*rig.Node).Stop, (*rig.Node).Crash} {
		rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
			ids := exportable(f, 240, 60)
			a, b := f.Nodes[0], f.Nodes[1]
			requeued := 0
			_, tasks := exportAll(t, a, ExportQuery{}, func(pages int) exporter {
				if pages == 4 { // memory has been read, but for its end
					c := f.Join("c", 1, Config{})
					c.Keeps.Store(true)
					for _, n := range []*rig.Node{a, b} {
						rig.Want(t, "hand-over", n.HandTo(c), nil)
					}
					rig.Pass(5 * time.Second)
					done, err := b.Admin().Requeue(t.Context(), "x", Requeue{Due: time.Now().Add(time.Hour)})
					rig.Want(t, "Requeue", err, nil)
					requeued += done.Requeued
					if c.Stats().Total.Pending == 0 {
						t.Error("the node that has joined holds no task")
					}
					end(c)
					a.Adopt(c)
					rig.Pass(5 * time.Second)
				}
				return f.Nodes[pages%2]
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
			f.Node("c").Restart()
			rig.Pass(5 * time.Second)
		})
	}
}

// A fleet imports what one node has exported. Every node knows it, and a repetition at another node
// changes nothing.
func TestImportOverNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		one := rig.New(t, Config{})
		everyKind(one)
		for i := range 200 {
			one.Must(Request{ID: fmt.Sprint("task-", i), Topic: "many", Delay: time.Hour, Group: "g"})
		}
		one.Bury("many", "dead-1", "dead-2", "dead-3", "dead-4")
		topics, before := exportAll(t, one, ExportQuery{}, nil)
		for k := range 2 {
			for _, x := range topics {
				if _, err := f.Nodes[k].SetTopic(t.Context(), x.Name, x.Settings, -1); err != nil {
					t.Fatal(err)
				}
			}
			results, err := f.Nodes[k].Admin().Import(t.Context(), before)
			rig.Want(t, "Import", err, nil)
			for i, a := range results {
				rig.Want(t, "import of "+before[i].ID, a.Err, nil)
				if a.Repeated != (k > 0) {
					t.Errorf("attempt %d: %s was there: %v", k, a.ID, a.Repeated)
				}
			}
			rig.Pass(3 * time.Second)
			_, after := exportAll(t, f.Nodes[2], ExportQuery{}, nil)
			if diff := cmp.Diff(byID(before), byID(after)); diff != "" {
				t.Errorf("tasks: %s", diff)
			}
		}
		for _, n := range f.Nodes {
			for _, id := range []string{"task-1", "dead-1", "delivered", "held"} {
				if task, err := n.Get(t.Context(), id); err != nil || task.ID != id {
					t.Errorf("%s knows of %s: %v", n.Name, id, err)
				}
			}
		}
		other := before[0]
		other.Fingerprint++
		results, err := f.Nodes[1].Admin().Import(t.Context(), []Exported{other})
		rig.Want(t, "Import", err, nil)
		rig.Want(t, "another task of an id", results[0].Err, ErrExists)
	})
}
