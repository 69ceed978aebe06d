package ledgertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// A FleetHarness gives a test one storage that several nodes share.
type FleetHarness interface {
	// Join returns the ledger of a node with so many shards of its own. It is not adopted yet.
	Join(t *testing.T, node string, shards int) recovery.Fleet
	// Crash ends a node's process, in effect, without any clean-up.
	Crash(t *testing.T, node recovery.Fleet)
	// Adopt makes another node adopt the shards of a crashed one, at once or in time.
	Adopt(t *testing.T, by, dead recovery.Fleet)
}

// RunFleet runs the conformance suite of a recovery.Fleet.
func RunFleet(t *testing.T, fresh func(t *testing.T) FleetHarness) {
	for name, test := range map[string]func(*testing.T, FleetHarness){
		"Homes":        testShardIDs,
		"HandOver":     testHandOver,
		"ReadAhead":    testReadAhead,
		"Adoption":     testAdoption,
		"Away":         testAway,
		"NumbersAgain": testNumbersAgain,
		"Nodes":        testNodes,
		"Holders":      testHolders,
	} {
		t.Run(name, func(t *testing.T) { test(t, fresh(t)) })
	}
}

// A fleetNode is one node, and the calls of its watcher.
type fleetNode struct {
	*testing.T
	recovery.Fleet
	terms recovery.Terms

	mu          sync.Mutex // guards everything below
	acquired    []int
	transferred int // how many of these were transferred
	lost        []int
}

const patience = 30 * time.Second

func join(t *testing.T, h FleetHarness, node string, shards int) *fleetNode {
	t.Helper()
	c := &fleetNode{T: t, Fleet: h.Join(t, node, shards)}
	note := func(change func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		change()
	}
	c.Watch(recovery.Watcher{
		Acquired: func(n int, transferred bool) {
			note(func() {
				if c.acquired = append(c.acquired, n); transferred {
					c.transferred++
				}
			})
		},
		Lost: func(n int, _ error) { note(func() { c.lost = append(c.lost, n) }) },
	})
	var err error
	if c.terms, err = c.Adopt(t.Context()); err != nil {
		t.Fatalf("Adopt by %s: %v", node, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// wantTransferred wants so many of the acquired shards to have been transferred.
func (c *fleetNode) wantTransferred(count int) {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transferred != count {
		c.Errorf("%d of the shards %v were transferred; want %d", c.transferred, c.acquired, count)
	}
}

// waitAcquired waits until so many shards were acquired, and returns their numbers.
func (c *fleetNode) waitAcquired(count int) []int {
	c.Helper()
	var all []int
	c.until("shards are acquired", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		all = slices.Clone(c.acquired)
		return len(all) >= count
	})
	if len(all) != count {
		c.Fatalf("acquired %v; want %d shards", all, count)
	}
	return all
}

func (c *fleetNode) until(what string, is func() bool) {
	c.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.Fatalf("waited in vain until %s", what)
		}
	}
}

func (c *fleetNode) put(shard int, id string, from, to recovery.Spot) error {
	var b recovery.Batch
	b.Add(recovery.Change{ID: []byte(id), From: from, To: to, Data: []byte("of " + id)})
	return c.Apply(c.Context(), shard, &b)
}

func (c *fleetNode) mustPut(shard int, id string, from, to recovery.Spot) {
	c.Helper()
	if err := c.put(shard, id, from, to); err != nil {
		c.Fatalf("Apply: %v", err)
	}
}

// transfer hands a shard over as it stands.
func (c *fleetNode) transfer(shard int, to string) error {
	at, err := c.Position(shard)
	if err != nil {
		return err
	}
	return c.Transfer(c.Context(), shard, to, at)
}

// pendings reads what is pending in a shard, by ScanShard and Get.
func (c *fleetNode) pendings(shard int) []string {
	c.Helper()
	var refs []recovery.Ref
	err := c.ScanShard(c.Context(), shard, func(page []recovery.Entry) error {
		for _, e := range page {
			if e.Shard != shard {
				c.Errorf("%s is nominated in shard %d, not %d", e.ID, e.Shard, shard)
			}
			refs = append(refs, recovery.Ref{ID: string(e.ID), Next: e.Spot.At})
		}
		return nil
	})
	var ids []string
	if err == nil {
		err = c.Get(c.Context(), shard, refs, func(i int, e recovery.Entry) {
			if string(e.Data) != "of "+refs[i].ID {
				c.Errorf("the record of %s is %q", refs[i].ID, e.Data)
			}
			ids = append(ids, refs[i].ID)
		})
	}
	if err != nil {
		c.Fatalf("reading shard %d: %v", shard, err)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// testShardIDs: every shard has a shard id, which ids tell.
func testShardIDs(t *testing.T, h FleetHarness) {
	a := join(t, h, "a", 3)
	b := join(t, h, "b", 2)
	seen := make(map[recovery.ShardID]bool)
	for _, c := range []*fleetNode{a, b} {
		for n := range c.terms.Shards {
			shardID := c.ShardID(n)
			if shardID == 0 || seen[shardID] {
				t.Errorf("shard %d has the shard id %d", n, shardID)
			}
			seen[shardID] = true
			if got := c.terms.ShardOf([]byte(shardID.NewID())); got != n {
				t.Errorf("ShardOf an id of shard %d = %d", n, got)
			}
			if at, err := c.Locate(t.Context(), shardID, true); err != nil || at.Shard != n || !at.Live {
				t.Errorf("Locate of shard %d = %+v, %v", n, at, err)
			}
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d shard ids", len(seen))
	}
	at, err := b.Locate(t.Context(), a.ShardID(0), true)
	if err != nil || at.Shard != -1 || at.Node != "a" || !at.Live {
		t.Errorf("Locate of another's = %+v, %v", at, err)
	}
	if s := a.Standing(); !s.Certain {
		t.Errorf("Standing = %+v", s)
	}
}

// testHandOver: a shard that is transferred and accepted belongs to the other node, with its
// records, and its former holder cannot write it any more.
func testHandOver(t *testing.T, h FleetHarness) {
	a, b, c := join(t, h, "a", 2), join(t, h, "b", 1), join(t, h, "c", 1)
	shardID := a.ShardID(0)
	id, gone, stays := shardID.NewID(), shardID.NewID(), a.ShardID(1).NewID()
	a.mustPut(0, id, recovery.Spot{}, pending(noon))
	a.mustPut(0, gone, recovery.Spot{}, pending(noon))
	a.mustPut(0, gone, pending(noon), dead("topic", noon+1))
	a.mustPut(1, stays, recovery.Spot{}, pending(noon))
	if ok, err := b.Accept(t.Context(), shardID); ok || err != nil {
		t.Fatalf("Accept of what was not transferred = %v, %v", ok, err)
	}
	if err := a.transfer(0, "absent"); err == nil || errors.Is(err, recovery.ErrLost) {
		t.Fatalf("Yield to an absent node = %v", err)
	}
	a.mustPut(0, id, pending(noon), pending(noon+1))
	if err := a.transfer(0, "b"); err != nil {
		t.Fatalf("Yield: %v", err)
	}
	if err := a.put(0, id, pending(noon+1), pending(noon+2)); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply to a shard that was transferred = %v", err)
	}
	if err := a.transfer(0, "b"); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Yield again = %v", err)
	}
	if ok, err := c.Accept(t.Context(), shardID); ok || err != nil {
		t.Errorf("Accept by another one = %v, %v", ok, err)
	}
	for range 2 {
		if ok, err := b.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatalf("Accept = %v, %v", ok, err)
		}
	}
	n := b.waitAcquired(1)[0]
	b.wantTransferred(1)
	if b.ShardID(n) != shardID || b.terms.ShardOf([]byte(id)) != n {
		t.Errorf("shard %d has the shard id %d; ShardOf = %d", n, b.ShardID(n), b.terms.ShardOf([]byte(id)))
	}
	if got := b.pendings(n); !slices.Equal(got, []string{id}) {
		t.Errorf("pending there: %q", got)
	}
	b.wantDead(n, gone)
	b.mustPut(n, id, pending(noon+1), pending(noon+3))
	if got := a.pendings(1); !slices.Equal(got, []string{stays}) {
		t.Errorf("pending here: %q", got)
	}
	for range 20 { // for any hash
		if n := a.terms.ShardOf([]byte(shardID.NewID())); n != -1 {
			t.Errorf("ShardOf an id of that shard at the former holder = %d", n)
		}
	}
	if at, err := c.Locate(t.Context(), shardID, true); err != nil || at.Node != "b" || at.Shard != -1 {
		t.Errorf("Locate = %+v, %v", at, err)
	}
}

// testReadAhead: the next owner of a shard reads it before it is transferred, as it stands at a
// position that every batch and every change of owner ends.
func testReadAhead(t *testing.T, h FleetHarness) {
	a, b := join(t, h, "a", 1), join(t, h, "b", 1)
	shardID := a.ShardID(0)
	id, gone := shardID.NewID(), shardID.NewID()
	a.mustPut(0, id, recovery.Spot{}, pending(noon))
	a.mustPut(0, gone, recovery.Spot{}, pending(noon))
	a.mustPut(0, gone, pending(noon), dead("topic", noon+1))
	read := func(position string) (ids, buried []string, err error) {
		whole, err := b.ReadAhead(t.Context(), shardID, position, func(page []recovery.Entry) error {
			for _, e := range page {
				if e.Spot.Place != recovery.Pending || len(e.Data) == 0 {
					t.Errorf("pending: %+v", e)
				}
				ids = append(ids, string(e.ID))
			}
			return nil
		}, func(e recovery.Entry) {
			if e.Spot != dead("topic", noon+1) {
				t.Errorf("dead: %+v", e)
			}
			buried = append(buried, string(e.ID))
		})
		if err == nil && !whole {
			t.Error("the index does not agree with the records")
		}
		return ids, buried, err
	}
	position := func(node *fleetNode, n int) string {
		at, err := node.Position(n)
		if err != nil {
			t.Fatalf("Position: %v", err)
		}
		return at
	}
	before := position(a, 0)
	if ids, buried, err := read(before); err != nil || !slices.Equal(ids, []string{id}) || !slices.Equal(buried, []string{gone}) {
		t.Errorf("ReadAhead = %q, %q, %v", ids, buried, err)
	}
	a.mustPut(0, id, pending(noon), pending(noon+1))
	if _, _, err := read(before); err == nil {
		t.Error("a shard counts as read at a position that it has left")
	}
	after := position(a, 0)
	if _, _, err := read(after); err != nil || after == before {
		t.Errorf("ReadAhead at %q after %q = %v", after, before, err)
	}
	if err := a.Transfer(t.Context(), 0, "b", before); err == nil || errors.Is(err, recovery.ErrLost) {
		t.Fatalf("Transfer of a shard that is not at the position = %v", err)
	}
	if err := a.Transfer(t.Context(), 0, "b", after); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Position(0); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Position of what was transferred = %v", err)
	}
	if _, _, err := read(after); err == nil {
		t.Error("a shard counts as read at the position of its former owner")
	}
}

// wantDead wants exactly these to be dead in a shard.
func (c *fleetNode) wantDead(shard int, ids ...string) {
	c.Helper()
	var got []string
	if err := c.GetDead(c.Context(), ids, func(i int, e recovery.Entry) {
		if e.Shard != shard {
			c.Errorf("%s is dead in shard %d, not %d", ids[i], e.Shard, shard)
		}
		got = append(got, ids[i])
	}); err != nil || !slices.Equal(got, ids) {
		c.Errorf("GetDead = %q, %v", got, err)
	}
	got = nil
	if err := c.ScanDead(c.Context(), shard, func(e recovery.Entry) {
		if e.Shard != shard || e.Spot.Place != recovery.Dead || e.Spot.Label == "" || e.Data != nil {
			c.Errorf("ScanDead: %+v", e)
		}
		got = append(got, string(e.ID))
	}); err != nil || !slices.Equal(got, ids) {
		c.Errorf("ScanDead = %q, %v", got, err)
	}
}

// testAdoption: the shards of a dead node are adopted with their records.
func testAdoption(t *testing.T, h FleetHarness) {
	a, b := join(t, h, "a", 2), join(t, h, "b", 1)
	var want []string
	for n := range 2 {
		id := a.ShardID(n).NewID()
		a.mustPut(n, id, recovery.Spot{}, pending(noon))
		want = append(want, id)
	}
	h.Crash(t, a.Fleet)
	h.Adopt(t, b.Fleet, a.Fleet)
	var got []string
	for _, n := range b.waitAcquired(2) {
		got = append(got, b.pendings(n)...)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("pending: %q, want %q", got, want)
	}
}

// testAway: a node that comes back learns which of its shards others hold, and gets them when they
// are transferred.
func testAway(t *testing.T, h FleetHarness) {
	a, b := join(t, h, "a", 2), join(t, h, "b", 1)
	id := a.ShardID(0).NewID()
	a.mustPut(0, id, recovery.Spot{}, pending(noon))
	shardIDs := []recovery.ShardID{a.ShardID(0), a.ShardID(1)}
	// An empty shard may have no holder.
	a.mustPut(1, shardIDs[1].NewID(), recovery.Spot{}, pending(noon))
	h.Crash(t, a.Fleet)
	h.Adopt(t, b.Fleet, a.Fleet)
	b.waitAcquired(2)
	b.wantTransferred(0)
	a = join(t, h, "a", 2)
	away := slices.Clone(a.terms.Away)
	slices.Sort(away)
	if a.terms.Shards != 0 || !slices.Equal(away, shardIDs) || a.terms.ShardOf([]byte(id)) != -1 {
		t.Fatalf("Terms = %d shards, away %v; ShardOf = %d", a.terms.Shards, away, a.terms.ShardOf([]byte(id)))
	}
	for _, n := range b.waitAcquired(2) {
		if b.ShardID(n) != shardIDs[0] {
			continue
		}
		if err := b.transfer(n, "a"); err != nil {
			t.Fatalf("Yield: %v", err)
		}
	}
	if ok, err := a.Accept(t.Context(), shardIDs[0]); !ok || err != nil {
		t.Fatalf("Accept = %v, %v", ok, err)
	}
	if got := a.pendings(a.waitAcquired(1)[0]); !slices.Equal(got, []string{id}) {
		t.Errorf("pending: %q", got)
	}
	a.wantTransferred(1)
}

// testNumbersAgain: a number stands for another term only after it was forgotten.
func testNumbersAgain(t *testing.T, h FleetHarness) {
	a, b := join(t, h, "a", 1), join(t, h, "b", 1)
	shardID := a.ShardID(0)
	a.mustPut(0, shardID.NewID(), recovery.Spot{}, pending(noon))
	back := func(count int) int {
		t.Helper()
		n := b.waitAcquired(count)[count-1]
		if err := b.transfer(n, "a"); err != nil {
			t.Fatalf("Yield: %v", err)
		}
		b.Forget(n)
		if ok, err := a.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatalf("Accept = %v, %v", ok, err)
		}
		return a.waitAcquired(count)[count-1]
	}
	there := func(n int) {
		t.Helper()
		if err := a.transfer(n, "b"); err != nil {
			t.Fatalf("Yield: %v", err)
		}
		if ok, err := b.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatalf("Accept = %v, %v", ok, err)
		}
	}
	there(0)
	second := back(1)
	if second == 0 {
		t.Error("the number of a term that was not forgotten was used again")
	}
	a.Forget(0)
	there(second)
	a.Forget(second)
	if third := back(2); third != 0 && third != second {
		t.Errorf("numbers grow: %d after 0 and %d", third, second)
	}
}

// testNodes: every node is listed by every other one.
func testNodes(t *testing.T, h FleetHarness) {
	a, b := join(t, h, "a", 2), join(t, h, "b", 1)
	a.until("both nodes are listed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		nodes, err := a.Nodes(ctx)
		return err == nil && len(nodes) == 2 && nodes[0].Name == "a" && nodes[0].Self && nodes[0].Live && nodes[0].Held == 2 &&
			nodes[1].Name == "b" && !nodes[1].Self && nodes[1].Live && nodes[1].Number != nodes[0].Number
	})
	peers, err := a.Peers(t.Context())
	if err != nil || len(peers) != 2 || !peers[0].Self || !peers[0].Live || peers[1].Self || !peers[1].Live {
		t.Errorf("Peers = %+v, %v", peers, err)
	}
	if a.ShardID(0).Node() == b.ShardID(0).Node() {
		t.Error("two nodes have one number")
	}
}

// allShardIDs are the shards of all nodes.
func (c *fleetNode) allShardIDs() []recovery.ShardID {
	c.Helper()
	shardIDs, err := c.ShardIDs(c.Context())
	if err != nil {
		c.Fatalf("Homes: %v", err)
	}
	return shardIDs
}

// testHolders: every shard comes with its current holder.
func testHolders(t *testing.T, h FleetHarness) {
	a, b := join(t, h, "a", 2), join(t, h, "b", 1)
	shardIDs := []recovery.ShardID{a.ShardID(0), a.ShardID(1), b.ShardID(0)}
	for n := range 2 { // an empty one may have no holder after its holder's death
		a.mustPut(n, a.ShardID(n).NewID(), recovery.Spot{}, pending(noon))
	}
	check := func(what string, c *fleetNode, nodes ...string) {
		t.Helper()
		all, err := c.Holders(t.Context(), c.allShardIDs())
		if err != nil || len(all) != len(shardIDs) {
			t.Fatalf("Holders %s = %+v, %v", what, all, err)
		}
		for i, shardID := range shardIDs {
			at := all[shardID]
			if at.Node != nodes[i] || !at.Live {
				t.Errorf("Holders %s: %d is at %+v; want node %s", what, i, at, nodes[i])
			}
			if n := c.terms.ShardOf([]byte(shardID.NewID())); at.Shard != n {
				t.Errorf("Holders %s: %d is at %+v; here it is %d", what, i, at, n)
			}
		}
	}
	check("at first", a, "a", "a", "b")
	check("of another", b, "a", "a", "b")
	if err := a.transfer(0, "b"); err != nil {
		t.Fatalf("Yield: %v", err)
	}
	check("of what was transferred", a, "b", "a", "b")
	if ok, err := b.Accept(t.Context(), shardIDs[0]); !ok || err != nil {
		t.Fatalf("Accept = %v, %v", ok, err)
	}
	b.waitAcquired(1)
	check("of what was accepted", b, "b", "a", "b")
	h.Crash(t, a.Fleet)
	all, err := b.Holders(t.Context(), shardIDs)
	if err != nil || all[shardIDs[1]].Node == "" {
		t.Errorf("Holders of what the dead hold = %+v, %v", all, err)
	}
	h.Adopt(t, b.Fleet, a.Fleet)
	b.waitAcquired(2)
	check("of what was adopted", b, "b", "b", "b")
}
