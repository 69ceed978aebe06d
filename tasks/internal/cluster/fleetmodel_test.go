package cluster_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A version is what a task may be, as far as its callers can know; the zero version is
// that there is none.
type version struct {
	payload string // what it says now
	request string // what was asked for when it was created or replaced
	held    bool
}

// A fleetModel is what a user of several nodes may rely on: that they are one.
type fleetModel struct {
	*rig.Fleet
	rnd       *rand.Rand
	may       map[string]map[version]bool // by id; absent: no task
	cancelled map[string]bool             // ids that may have been cancelled lately
	serial    int
	vague     int // answers that said nothing
	story     map[string][]string
}

func TestFleetAgainstModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	for round := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed+round), func(t *testing.T) {
			rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
				m := &fleetModel{Fleet: f, rnd: rand.New(rand.NewPCG(seed, round)), may: make(map[string]map[version]bool),
					cancelled: make(map[string]bool), story: make(map[string][]string)}
				m.T = t
				m.run(500)
			})
		})
	}
}

func (m *fleetModel) run(steps int) {
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprint("x-", i))
	}
	for i, n := range m.Nodes {
		ids = append(ids, n.ShardID(i).NewID())
	}
	sent := 0
	m.Lose(func(_, _ string, _ []byte) bool { sent++; return sent%5 == 0 })
	for step := 0; step < steps && !m.T.Failed(); step++ {
		if step%20 == 19 {
			m.upset()
		}
		n := m.Nodes[m.rnd.IntN(3)]
		if n.Dead {
			continue
		}
		m.act(n, ids[m.rnd.IntN(len(ids))])
		time.Sleep(time.Duration(m.rnd.IntN(100)) * time.Millisecond)
	}
	m.Lose(nil)
	for _, n := range m.Nodes {
		if n.Dead {
			n.Restart()
		}
	}
	rig.Pass(30 * time.Second)
	for _, id := range ids {
		var states []bool
		for _, n := range m.Nodes {
			m.get(n, id)
			states = append(states, n.Cluster().Knows(id))
		}
		known := 0
		for _, k := range states {
			if k {
				known++
			}
		}
		if wanted := len(m.is(id)); known > 1 || wanted == 1 && (known == 1) == m.is(id)[version{}] {
			m.fail(id, "it is known at %v", states)
		}
	}
	if m.vague > steps/2 {
		m.T.Errorf("%d of %d answers said nothing", m.vague, steps)
	}
}

// upset does something to the fleet.
func (m *fleetModel) upset() {
	from, to := m.Nodes[m.rnd.IntN(3)], m.Nodes[m.rnd.IntN(3)]
	switch {
	case from == to:
	case from.Dead && m.rnd.IntN(2) == 0:
		from.Restart() // and asks for what is its own
	case to.Dead:
	case from.Dead:
		to.Member.AdoptFrom(from.Member.Member)
	case m.rnd.IntN(3) == 0:
		from.Crash()
		time.AfterFunc(time.Duration(m.rnd.IntN(3000))*time.Millisecond, func() { to.Member.AdoptFrom(from.Member.Member) })
	default:
		to.Member.AdoptFrom(from.Member.Member) // which was cut off, and hears of it
	}
}

func (m *fleetModel) is(id string) map[version]bool {
	if m.may[id] == nil {
		m.may[id] = map[version]bool{{}: true}
	}
	return m.may[id]
}

func (m *fleetModel) fail(id, format string, args ...any) {
	m.T.Helper()
	m.T.Errorf("%s may be %v: %s; before: %q", id, m.is(id), fmt.Sprintf(format, args...), m.story[id])
}

// became says that a task is exactly this now.
func (m *fleetModel) became(id string, v version) { m.may[id] = map[version]bool{v: true} }

// vaguely takes an error that says nothing, and tells whether it was one. If the outcome
// is open, the task may be any of these as well.
func (m *fleetModel) vaguely(id string, err error, also ...version) bool {
	switch {
	case errors.Is(err, tasks.ErrUnknown):
		for _, v := range also {
			m.is(id)[v] = true
		}
	case errors.Is(err, tasks.ErrUnavailable), errors.Is(err, tasks.ErrReplaying):
	default:
		return false
	}
	m.vague++
	return true
}

// exists keeps the versions that agree, of which there must be one.
func (m *fleetModel) exists(id, what string, agree func(v version) bool) {
	m.T.Helper()
	left := make(map[version]bool)
	for v := range m.is(id) {
		if agree(v) {
			left[v] = true
		}
	}
	if len(left) == 0 {
		m.fail(id, "%s", what)
		return
	}
	m.may[id] = left
}

func none(v version) bool { return v == version{} }

func alive(v version) bool { return v != version{} }

func (m *fleetModel) act(n *rig.Node, id string) {
	m.serial++
	text := fmt.Sprint(m.serial)
	if m.rnd.IntN(3) == 0 {
		text = "usual"
	}
	switch m.rnd.IntN(8) {
	case 0, 1:
		m.get(n, id)
	case 2:
		m.schedule(n, id, text)
	case 3:
		m.cancel(n, id)
	case 4:
		m.move(n, id, text)
	case 5:
		m.replace(n, id, text)
	case 6:
		m.hold(n, id, true)
	case 7:
		m.hold(n, id, false)
	}
}

func (m *fleetModel) note(id string, n *rig.Node, what string, err error) {
	m.story[id] = append(m.story[id], fmt.Sprintf("%s %s at %s: %v", time.Now().Format("05.000"), what, n.Name, err))
	m.story[id] = m.story[id][max(0, len(m.story[id])-12):]
}

func (m *fleetModel) get(n *rig.Node, id string) {
	t, err := n.Get(m.T.Context(), id)
	m.note(id, n, "get "+string(t.Payload)+" of "+t.Node, err)
	switch {
	case m.vaguely(id, err):
	case err == nil:
		m.exists(id, "get "+string(t.Payload), func(v version) bool {
			return alive(v) && v.payload == string(t.Payload) && v.held == (t.State == tasks.Held)
		})
	case errors.Is(err, tasks.ErrNotFound):
		m.exists(id, "a wrong 404", none)
	default:
		m.fail(id, "get: %v", err)
	}
}

func (m *fleetModel) schedule(n *rig.Node, id, text string) {
	wanted := version{text, text, false}
	t, err := n.Schedule(m.T.Context(), tasks.Request{ID: id, Topic: "t", Delay: time.Hour, Payload: []byte(text)})
	m.note(id, n, "schedule "+text, err)
	switch {
	case m.vaguely(id, err, wanted):
	case err == nil && t.Repeated:
		m.exists(id, "it was there, and the same", func(v version) bool { return alive(v) && v.request == text })
	case err == nil:
		m.exists(id, "created", none)
		m.became(id, wanted)
	case errors.Is(err, tasks.ErrExists):
		m.exists(id, "it was there, and another one", func(v version) bool { return alive(v) && v.request != text })
	default:
		m.fail(id, "schedule: %v", err)
	}
}

func (m *fleetModel) cancel(n *rig.Node, id string) {
	err := n.Cancel(m.T.Context(), id)
	m.note(id, n, "cancel", err)
	switch {
	case m.vaguely(id, err, version{}):
	case err == nil:
		if !m.cancelled[id] {
			m.exists(id, "cancelled", alive)
		}
		m.cancelled[id] = true
		m.became(id, version{})
	case errors.Is(err, tasks.ErrNotFound):
		m.exists(id, "a wrong 404 of cancel", none)
	default:
		m.fail(id, "cancel: %v", err)
	}
	if errors.Is(err, tasks.ErrUnknown) {
		m.cancelled[id] = true
	}
}

func (m *fleetModel) move(n *rig.Node, id, text string) {
	_, err := n.Reschedule(m.T.Context(), id, tasks.Move{Payload: []byte(text)})
	m.note(id, n, "move "+text, err)
	m.changed(id, "move", err, func(v version) version {
		v.payload = text
		return v
	})
}

func (m *fleetModel) hold(n *rig.Node, id string, held bool) {
	do := n.Resume
	if held {
		do = n.Hold
	}
	t, err := do(m.T.Context(), id)
	m.note(id, n, fmt.Sprintf("hold %v", held), err)
	m.changed(id, "hold", err, func(v version) version {
		v.held = held
		return v
	})
	if err == nil && (t.State == tasks.Held) != held {
		m.fail(id, "hold %v: it is %v", held, t.State)
	}
}

// changed takes the answer of what changes a task that exists.
func (m *fleetModel) changed(id, what string, err error, change func(v version) version) {
	var after []version
	for v := range m.is(id) {
		if alive(v) {
			after = append(after, change(v))
		}
	}
	switch {
	case m.vaguely(id, err, after...):
	case err == nil && len(after) == 0:
		m.fail(id, "%s of no task", what)
	case err == nil:
		m.may[id] = make(map[version]bool)
		for _, v := range after {
			m.may[id][v] = true
		}
	case errors.Is(err, tasks.ErrNotFound):
		m.exists(id, "a wrong 404 of "+what, none)
	default:
		m.fail(id, "%s: %v", what, err)
	}
}

func (m *fleetModel) replace(n *rig.Node, id, text string) {
	wanted := version{text, text, false}
	r := tasks.Request{ID: id, Topic: "t", Delay: time.Hour, Payload: []byte(text), Supersede: m.rnd.IntN(2) == 0}
	var t tasks.Result
	var err error
	if m.rnd.IntN(2) == 0 {
		var one tasks.Task
		one, err = n.Replace(m.T.Context(), r)
		t.Repeated = one.Repeated
	} else {
		var results []tasks.Result
		results, err = n.ReplaceBatch(m.T.Context(), []tasks.Request{r})
		if err == nil {
			t, err = results[0], results[0].Err
		}
	}
	m.note(id, n, "replace "+text, err)
	switch {
	case m.vaguely(id, err, wanted):
	case err == nil && t.Repeated:
		m.exists(id, "replaced", alive)
		m.became(id, wanted)
	case err == nil:
		m.exists(id, "created", none)
		m.became(id, wanted)
	default:
		m.fail(id, "replace: %v", err)
	}
}
