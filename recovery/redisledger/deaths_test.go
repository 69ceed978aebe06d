package redisledger

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

var (
	ofDeaths = regexp.MustCompile(`level=\w+ msg="(a node is |a node has |a node that has ended |a dead node was |a shard of a dead node).*`)
	spanOfIt = regexp.MustCompile(`(silent|took|after)=[0-9.hmnµ]*s`)
)

// wantLines compares the lines of a node's log about deaths, without their durations, which must
// have a unit.
func (l *lines) wantLines(t *testing.T, node string, want []string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(l.String()) {
		if said := ofDeaths.FindString(strings.TrimSpace(line)); said != "" {
			said = strings.ReplaceAll(said, " node="+node+" ", " ")
			got = append(got, spanOfIt.ReplaceAllString(said, "$1=T"))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s says\n%s\nwant\n%s", node, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// mourners are nodes that watch others, and what their logs must say of them.
type mourners struct {
	t     *testing.T
	nodes []*fleetNode
	logs  []*lines
	want  []string // without the key node
}

// mourn starts still nodes of these names.
func mourn(t *testing.T, url string, names ...string) *mourners {
	m := &mourners{t: t}
	for _, name := range names {
		log := &lines{}
		m.nodes = append(m.nodes, join(t, url, name, func(o *Options) { still(o); o.Log = log.logger() }))
		m.logs = append(m.logs, log)
	}
	m.look()
	return m
}

// look makes the nodes look at the others several times, and adopt.
func (m *mourners) look() {
	m.t.Helper()
	for range 3 {
		for _, n := range m.nodes {
			n.member.KeepOnce()
			n.look(m.t)
		}
	}
}

// miss makes the nodes see no heartbeat of a node for so long, and then look.
func (m *mourners) miss(node string, silent time.Duration) {
	m.t.Helper()
	for _, n := range m.nodes {
		n.age(m.t, silent, node)
	}
	m.look()
}

// say compares the logs with all lines so far and these further ones.
func (m *mourners) say(further ...string) {
	m.t.Helper()
	m.want = append(m.want, further...)
	for i, n := range m.nodes {
		m.logs[i].wantLines(m.t, n.opts.Node, m.want)
	}
}

const (
	isDead     = `level=WARN msg="a node is dead" of=a silent=T shards=4 tasks=4`
	wasAdopted = `level=INFO msg="a dead node was adopted" of=a by="b (2 shards), c (2 shards)" shards=4 tasks=4 took=T`
	hasEnded   = `level=INFO msg="a node has ended" of=a silent=T shards=4 tasks=4`
	wasTaken   = `level=INFO msg="a node that has ended was adopted" of=a by="b (2 shards), c (2 shards)" shards=4 tasks=4 took=T`
	isBack     = `level=INFO msg="a node is back" of=a after=T`
)

// Each node that survives another one has one line when that is dead, one when its shards are
// adopted, and one when it is back.
func TestDeathsAreLogged(t *testing.T) {
	url := redistest.Start(t).URL()
	a := join(t, url, "a", still)
	m := mourn(t, url, "b", "c")
	a.put(t)
	m.look()
	m.say()
	a.crash()
	m.miss("a", 2*time.Hour)
	m.say(isDead, wasAdopted)
	for _, n := range m.nodes {
		n.member.Probe().BeginAnew() // a gap in the watch brings no node back to life
	}
	m.miss("a", 2*time.Hour)
	m.say()
	a.lives.join(t)
	m.look()
	m.say(isBack)
	m.look()
	m.say()
}

// A node that was suspended is back with its next heartbeat, also when Redis has lost its counter.
func TestSuspendedNodeIsBack(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	m := mourn(t, server.URL(), "b", "c")
	a.put(t)
	m.miss("a", 2*time.Hour)
	m.say(isDead, wasAdopted)
	server.Do("del", a.keys.Heartbeat("a"))
	m.look()
	m.say()
	for range 2 {
		if err := a.member.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.look()
	}
	m.say(isBack)
}

// The return of a node is logged though the registry has forgotten it meanwhile. A node that starts
// after its death says nothing of one that holds no shards.
func TestForgottenNodeIsBack(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	m := mourn(t, server.URL(), "b", "c")
	a.crash()
	m.miss("a", 2*time.Hour)
	late := mourn(t, server.URL(), "d")
	late.miss("a", 2*time.Hour)
	late.say()
	m.miss("a", 20*time.Hour) // longer than forgetAfter
	m.say(strings.ReplaceAll(isDead, "tasks=4", "tasks=0"), strings.ReplaceAll(wasAdopted, "tasks=4", "tasks=0"))
	if n := server.Do("hexists", a.keys.Nodes(), "a"); n != int64(0) {
		t.Fatal("it is registered still")
	}
	a.lives.join(t)
	m.look()
	m.say(isBack)
}

// A node that has stopped in order has lines only if others adopt what it held, and no warning.
func TestStoppedNodeIsMourned(t *testing.T) {
	url := redistest.Start(t).URL()
	a := join(t, url, "a", still)
	m := mourn(t, url, "b", "c")
	a.put(t)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	m.look()
	m.say()
	m.miss("a", 2*time.Hour)
	m.say(hasEnded, wasTaken)
}
