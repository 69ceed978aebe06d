package tasks

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
)

// A crew are several schedulers under test that share a ledger.
type crew struct {
	t     testing.TB
	fleet *memfleet.Fleet
	log   *logged
	slow  time.Duration   // of each batch, at nodes that are started from then on
	spool recovery.Ledger // of the next node; nil: none
	nodes []*mate
}

// A slowMember takes its time to write.
type slowMember struct {
	*memfleet.Member
	delay time.Duration
}

func (m slowMember) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	time.Sleep(m.delay)
	return m.Member.Apply(ctx, shard, b)
}

// A mate is one of them.
type mate struct {
	*Scheduler
	c      *crew
	name   string
	member *memfleet.Member
	dead   bool
}

const crewShards = 3

// newCrew starts so many nodes, named a, b, c and so on, with three shards each. They are
// closed with the test.
func newCrew(t testing.TB, n int) *crew {
	t.Helper()
	c := &crew{t: t, fleet: memfleet.New(), log: &logged{}}
	for i := range n {
		c.nodes = append(c.nodes, c.start(string(rune('a'+i))))
	}
	t.Cleanup(func() {
		c.fleet.Drop(nil)
		for _, m := range c.nodes {
			m.stop()
		}
	})
	return c
}

// crewed runs a test with fake time, on a crew whose directory is in order.
func crewed(t *testing.T, n int, test func(t *testing.T, c *crew)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, n)
		pass(3 * time.Second) // all ids are indexed by then
		test(t, c)
	})
}

func (c *crew) start(name string) *mate {
	c.t.Helper()
	m := &mate{c: c, name: name, member: c.fleet.Join(name, crewShards)}
	m.open()
	return m
}

func (m *mate) open() {
	m.c.t.Helper()
	var err error
	m.Scheduler, err = Open(m.c.t.Context(), slowMember{m.member, m.c.slow}, Config{Node: m.name, Spool: m.c.spool, Log: slog.New(slog.NewTextHandler(m.c.log, nil))})
	if err != nil {
		m.c.t.Fatalf("Open of %s: %v", m.name, err)
	}
}

func (m *mate) stop() {
	if !m.dead {
		m.dead = true
		_ = m.Close(context.Background()) // some have lost what they held
	}
}

// kill ends a node as kill -9 would.
func (m *mate) kill() {
	m.member.Crash()
	m.dead = true
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = m.Close(ctx)
}

// restart starts the next process of a node that is dead.
func (m *mate) restart() {
	m.member = m.c.fleet.Join(m.name, crewShards)
	m.dead = false
	m.open()
}

func (m *mate) must(r Request) Task {
	m.c.t.Helper()
	t, err := m.Schedule(m.c.t.Context(), r)
	if err != nil {
		m.c.t.Fatalf("Schedule(%q) at %s: %v", r.ID, m.name, err)
	}
	return t
}

func (m *mate) get(id string) Task {
	m.c.t.Helper()
	t, err := m.Get(m.c.t.Context(), id)
	if err != nil {
		m.c.t.Fatalf("Get(%q) at %s: %v", id, m.name, err)
	}
	return t
}

// homeOn makes an id that tells a shard of a node.
func (m *mate) homeOn(shard int) recovery.ShardID {
	return recovery.NewShardID(m.engine.NodeNumber, shard)
}

// each calls test for every task's shard and every node where something is asked, with a
// task that was created there: under an id made by Lapse, or one that its caller chose.
func (c *crew) each(test func(what string, owner, asked *mate, task Task)) {
	c.t.Helper()
	for i, owner := range c.nodes {
		for k, asked := range c.nodes {
			for _, id := range []string{"", fmt.Sprintf("order-%d-%d-%d", i, k, time.Now().UnixNano())} {
				task := owner.must(Request{ID: id, Topic: "t", Delay: time.Hour, Payload: []byte(`{"n":1}`)})
				test(fmt.Sprintf("%s of %s at %s", task.ID, owner.name, asked.name), owner, asked, task)
			}
		}
	}
}
