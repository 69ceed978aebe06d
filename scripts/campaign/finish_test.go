package campaign

import (
	"fmt"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// deliverWithin is the time, after the last fault and the last deadline, in which all tasks must be
// delivered and acknowledged.
const deliverWithin = 90 * time.Second

// finish waits until nothing is owed and no node lists a task, kills all nodes at once, and checks
// that no task comes back. It returns what is left after the wait, by node.
func (f *fleet) finish(ahead time.Duration) (left string) {
	f.note("finish")
	f.allUp()
	f.resumeAll()
	left = f.drained(ahead + deliverWithin)
	f.delivered = time.Now()
	if left != "" {
		return left
	}
	f.note("all are killed once more")
	var overs []func()
	for _, n := range f.nodes {
		n.life.Lock()
		overs = append(overs, f.history.Begin(crash.Killed, n.name))
		n.end(syscall.SIGKILL)
	}
	for i, n := range f.nodes {
		n.bringUp()
		overs[i]()
		n.life.Unlock()
	}
	return f.drained(deliverWithin)
}

// allUp waits until no node is being started, and every one is ready.
func (f *fleet) allUp() {
	for _, n := range f.nodes {
		n.life.Lock()
		if r := n.latest(); r.over() {
			n.bringUp()
		} else {
			n.ready()
		}
		n.life.Unlock()
	}
}

// drained waits until nothing is owed any more and every node reports for all nodes that no task is
// left. It requeues the dead, and resumes what is held again. It returns what is left when the time
// is over.
func (f *fleet) drained(limit time.Duration) (left string) {
	empty := 0
	if rig.Within(20*time.Millisecond, limit, func() bool {
		left = f.whatIsLeft()
		if left == "" {
			empty++ // twice, since a requeued task may be missed in between
		} else {
			empty = 0
			f.rest(300 * time.Millisecond)
		}
		return empty == 2
	}) {
		return ""
	}
	return left
}

func (f *fleet) whatIsLeft() (left string) {
	if owed := f.bench().Owed(f.history); owed > 0 {
		left = fmt.Sprintf("%d tasks are owed", owed)
	}
	for _, n := range f.nodes {
		r := n.latest()
		if dead := f.requeueDead(r, 1000); dead != 0 {
			left += fmt.Sprintf("; %s lists %d dead", n.name, dead)
		}
		for _, name := range append([]string{topic}, f.pulls...) {
			a := f.ask(r, http.MethodGet, "/v1/tasks?limit=100&topic="+name, nil)
			var list struct{ Tasks []pulled }
			if a.outcome == crash.Done {
				f.decode(a, &list)
			}
			for _, t := range list.Tasks {
				if t.State == "held" { // Redis has lost that it was resumed
					f.resume(&order{n: t.Payload.N, id: t.ID}, r)
				}
			}
			if a.outcome != crash.Done || len(list.Tasks) > 0 {
				left += fmt.Sprintf("; %s: %d %.400s", n.name, a.status, a.body)
			}
		}
	}
	f.each(func(w *feature) {
		if w.left == nil {
			return
		}
		if what := w.left(f); what != "" {
			left += "; " + what
		}
	})
	return left
}

// reportOwed writes what each node answers about tasks that are owed.
func (f *fleet) reportOwed(file *os.File) {
	owed := f.history.Owes()
	fmt.Fprintf(file, "\n%d tasks are owed\n", len(owed))
	for _, n := range owed[:min(20, len(owed))] {
		id := ""
		for _, c := range f.history.Task(n).Changes {
			if c.ID != "" {
				id = c.ID
			}
		}
		for _, node := range f.nodes {
			if id == "" {
				continue
			}
			a := f.ask(node.latest(), http.MethodGet, "/v1/tasks/"+id, nil)
			fmt.Fprintf(file, "task %d, id %s, at %s: %d %.300s\n", n, id, node.name, a.status, a.body)
		}
	}
}
