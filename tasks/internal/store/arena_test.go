package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// A arenaRig is an arena with the owners of its entries, and what they should be.
type arenaRig struct {
	t     *testing.T
	rng   *rand.Rand
	arena *arena
	at    map[uint32]address
	held  map[uint32][2][]byte // id and record
}

func newShelf(t *testing.T, seed uint64) *arenaRig {
	t.Logf("seed %d", seed)
	return &arenaRig{t, rand.New(rand.NewPCG(seed, 0)), newArena(), map[uint32]address{}, map[uint32][2][]byte{}}
}

func (s *arenaRig) put(slot uint32, size int) {
	id, rec := fmt.Appendf(nil, "id-%d", slot), make([]byte, size)
	for i := range rec {
		rec[i] = byte(s.rng.Uint32())
	}
	s.at[slot], s.held[slot] = s.arena.put(slot, id, rec, slot%3 == 0), [2][]byte{id, rec}
}

func (s *arenaRig) remove(slot uint32) {
	s.arena.remove(s.at[slot])
	delete(s.at, slot)
	delete(s.held, slot)
}

// compact empties all sparse segments and returns how many.
func (s *arenaRig) compact() (n int) {
	for i, ok := s.arena.sparse(0); ok; i, ok = s.arena.sparse(i + 1) {
		s.arena.compact(i, func(slot uint32) address { return s.at[slot] }, func(slot uint32, to address) { s.at[slot] = to })
		n++
	}
	return n
}

func (s *arenaRig) check() {
	s.t.Helper()
	live, size := 0, 0
	for slot, want := range s.held {
		p := s.at[slot]
		if !bytes.Equal(s.arena.id(p), want[0]) || !bytes.Equal(s.arena.record(p), want[1]) {
			s.t.Fatalf("slot %d: %q, %x", slot, s.arena.id(p), s.arena.record(p))
		}
		live += len(s.arena.at(p))
	}
	for i := range s.arena.segments {
		size += cap(s.arena.segments[i].mem)
	}
	if s.arena.live != int64(live) || s.arena.size != int64(size) {
		s.t.Fatalf("live %d, size %d; counted %d, %d", s.arena.live, s.arena.size, live, size)
	}
}

func TestArenaAgainstMap(t *testing.T) {
	s := newShelf(t, rand.Uint64())
	next := uint32(1)
	for range 20_000 {
		switch s.rng.IntN(10) {
		case 0, 1, 2, 3, 4:
			s.put(next, s.rng.IntN(2000))
			next++
		case 5:
			if s.rng.IntN(20) == 0 {
				s.put(next, segmentSize+s.rng.IntN(segmentSize)) // larger than a segment
				next++
			}
		case 6, 7, 8:
			for slot := range s.held {
				s.remove(slot)
				break
			}
		case 9:
			if s.rng.IntN(100) == 0 {
				s.compact()
				s.check()
			}
		}
	}
	s.check()
	for slot := range s.held {
		s.remove(slot)
	}
	s.check()
}

// Compaction gives the memory of what has gone back, and keeps the rest.
func TestArenaShrinks(t *testing.T) {
	s := newShelf(t, 1)
	const n = 50_000
	for slot := uint32(1); slot <= n; slot++ {
		s.put(slot, 200)
	}
	full := s.arena.size
	for slot := uint32(1); slot <= n; slot++ {
		if slot%10 != 0 {
			s.remove(slot)
		}
	}
	for s.compact() > 0 {
	}
	s.check()
	if len(s.held) != n/10 || s.arena.size > full/5 {
		t.Errorf("%d entries, %d of %d bytes are left", len(s.held), s.arena.size, full)
	}
	if s.compact() != 0 {
		t.Error("there is no end to it")
	}
}

// What is dense is left alone: a quarter gone at random moves nothing.
func TestArenaLeavesDenseSegments(t *testing.T) {
	s := newShelf(t, 1)
	for slot := uint32(1); slot <= 20_000; slot++ {
		s.put(slot, 200)
	}
	for slot := uint32(4); slot <= 20_000; slot += 4 {
		s.remove(slot)
	}
	if n := s.compact(); n != 0 {
		t.Errorf("%d segments were moved", n)
	}
}

// rewrite moves a record while it reads the id from its old place.
func TestBookRewrite(t *testing.T) {
	b := New()
	n, _ := b.Enter([]byte("id"), []byte("first"))
	for i := range 3000 {
		rec := bytes.Repeat([]byte{byte(i)}, 1000)
		b.Rewrite(n, rec)
		sl := b.Slot(n)
		if string(b.ID(sl)) != "id" || !bytes.Equal(b.Record(sl), rec) {
			t.Fatalf("after %d: %q, %x", i, b.ID(sl), b.Record(sl)[:10])
		}
	}
	if b.arena.size > 4*segmentSize {
		t.Errorf("%d bytes for one record", b.arena.size)
	}
}

// What was taken and not given up is what the arena has: its segments and the spare ones.
func TestArenaMoves(t *testing.T) {
	s := newShelf(t, 1)
	for slot := range uint32(2 * maxSpare) {
		s.put(slot, segmentSize/2+1) // one a segment
	}
	s.put(1<<20, 2*segmentSize) // of its own, and not counted
	for slot := range uint32(2 * maxSpare) {
		s.remove(slot)
	}
	taken, gone := 0, 0
	for _, p := range s.arena.moves {
		if p.Bytes < 0 {
			gone -= p.Bytes
		} else {
			taken += p.Bytes
		}
	}
	if kept := len(s.arena.spare) * segmentSize; gone == 0 || taken-gone != kept {
		t.Errorf("%d bytes were taken and %d given up, and %d are spare", taken, gone, kept)
	}
}

// Once the tasks have gone, tidying gives their memory up: that of spare segments too.
func TestTidyGivesSpareSegmentsUp(t *testing.T) {
	b := New()
	var slots []uint32
	for n := range maxSpare { // one a segment
		slot, _ := b.Enter(fmt.Appendf(nil, "id-%d", n), make([]byte, segmentSize-100))
		slots = append(slots, slot)
	}
	for _, slot := range slots {
		b.Leave(slot)
	}
	if len(b.arena.spare) < maxSpare/2 {
		t.Fatalf("%d segments are spare", len(b.arena.spare))
	}
	for from := b.Tidy(0, 4); from != 0; from = b.Tidy(from, 4) {
	}
	memory := 0
	for _, p := range b.Moves()[1:] { // less the slots
		memory += p.Bytes
	}
	if spare := len(b.arena.spare); spare > 1 || memory != int(b.Size())+spare*segmentSize {
		t.Errorf("%d segments are spare, %d bytes were not given up, and %d are in use", spare, memory, b.Size())
	}
}
