package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// While an export runs, Redis is killed and starts with nothing. Every task is in the export,
// although the ledger had none of them for a while: also dead ones, and those that were requeued.
func TestExportWhileRedisRestarts(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		dead := []string{"dead-0", "dead-1", "back-0", "back-1"}
		g.schedule("x", dead...)
		g.bury(dead...)
		missing := make(map[string]bool)
		for _, id := range dead {
			missing[id] = true
		}
		payload := make([]byte, 50_000) // so that there are several pages
		for i := range 400 {
			id := fmt.Sprint("task-", i)
			_, err := g.next().Schedule(t.Context(), Request{ID: id, Topic: "y", Delay: time.Hour, Payload: payload})
			rig.Want(t, "Schedule", err, nil)
			missing[id] = true
		}
		for q, pages := (ExportQuery{}), 1; pages == 1 || q.Cursor != ""; pages++ {
			var page ExportPage
			n := g.next()
			err := n.answered("a page", func() (err error) { page, err = n.Admin().Export(t.Context(), q); return err })
			rig.Want(t, "Export", err, nil)
			for i := range page.Tasks {
				delete(missing, page.Tasks[i].ID)
			}
			q.Cursor = page.Cursor
			switch pages {
			case 2:
				server.Kill()
				server.Start()
			case 3:
				n := g.next()
				err := n.answered("Requeue", func() error {
					_, err := n.Admin().Requeue(t.Context(), "x", Requeue{IDs: dead[2:], Due: time.Now().Add(time.Hour)})
					return err
				})
				rig.Want(t, "Requeue", err, nil)
			case rig.MostPages:
				t.Fatal("the export does not end")
			}
		}
		if len(missing) > 0 {
			t.Errorf("%d tasks are missing: %v", len(missing), missing)
		}
	})
}

// Tasks that only the spool has are in an export, at whatever moment they move to the ledger.
func TestExportWhileSpooledTasksMove(t *testing.T) {
	t.Parallel()
	for moving := range 5 {
		rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
			payload := make([]byte, 50_000)
			missing := make(map[string]bool)
			schedule := func(spooled bool) {
				for range 200 {
					x := r.Must(Request{Topic: "x", Delay: time.Hour, Payload: payload})
					if x.Spooled != spooled {
						t.Fatalf("%s is spooled: %v", x.ID, x.Spooled)
					}
					missing[x.ID] = true
				}
			}
			schedule(false)
			r.Away()
			schedule(true)
			_, all := exportAll(t, r, ExportQuery{}, func(pages int) exporter {
				if pages == moving+1 {
					r.Faulty.Heal()
					r.WantSpool(0, 200)
				}
				return r
			})
			for i := range all {
				delete(missing, all[i].ID)
			}
			if len(missing) > 0 {
				t.Errorf("moved behind page %d: %d tasks are missing", moving+1, len(missing))
			}
		}, memledger.Shards(4))
	}
}
