package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/record"
)

// Every task that is there is in the list of its id, whenever it came.
func TestOrderHasEveryTask(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	b, slots := New(), map[string]uint32{}
	rec := (&record.Fields{Topic: []byte("t")}).Append(nil)
	now := time.Now()
	change := func() {
		id := fmt.Sprint("task-", rng.IntN(3000))
		if n, ok := slots[id]; ok {
			b.Leave(n)
			delete(slots, id)
			return
		}
		slots[id], _ = b.Enter([]byte(id), rec)
	}
	for range 4000 {
		change()
	}
	for !b.OrderSome(100, now) {
		for range 50 {
			change()
		}
	}
	for range 4000 {
		change()
	}
	for id, n := range slots {
		found := false
		list, whole := b.Ordered(ListOf(PlaceOf([]byte(id))))
		if !whole {
			t.Fatal("the order is not whole")
		}
		for _, k := range list {
			found = found || k == n
		}
		if !found {
			t.Fatalf("%s is in no list", id)
		}
	}
	b.DropOrder(now)
	if b.order == nil {
		t.Error("the order was dropped while it was in use")
	}
	b.DropOrder(now.Add(time.Second))
	if b.order != nil {
		t.Error("the order stays")
	}
}

// An order that was read one slot at a time has each task once, and NextList leads to all lists
// that have some.
func TestOrderSlotBySlot(t *testing.T) {
	b := New()
	rec := (&record.Fields{Topic: []byte("t")}).Append(nil)
	want := map[uint32]bool{}
	for i := range 5 {
		n, _ := b.Enter(fmt.Append(nil, "task-", i), rec)
		want[n] = true
	}
	for !b.OrderSome(1, time.Now()) {
	}
	for list := b.NextList(0); list < OrderLists; list = b.NextList(list + 1) {
		slots, _ := b.Ordered(list)
		for _, n := range slots {
			if !want[n] {
				t.Errorf("slot %d is listed twice, or was never entered", n)
			}
			delete(want, n)
		}
	}
	if len(want) > 0 {
		t.Errorf("slots %v are in no list", want)
	}
}

// An order in which many tasks have come and gone begins anew.
func TestOrderIsBounded(t *testing.T) {
	b := New()
	rec := (&record.Fields{Topic: []byte("t")}).Append(nil)
	b.OrderSome(1, time.Now())
	for range spareEntries + 400 {
		n, _ := b.Enter([]byte("task"), rec)
		b.Leave(n)
	}
	for range 100 {
		b.Enter(fmt.Append(nil, "task-", b.used), rec)
	}
	if b.OrderSome(1, time.Now()); b.order.entries > 1 {
		t.Errorf("the order has %d entries for one slot", b.order.entries)
	}
	if _, whole := b.Ordered(0); whole {
		t.Error("the order counts as whole, and has just begun anew")
	}
	b.DropOrder(time.Now().Add(time.Second))
	if _, whole := b.Ordered(0); whole {
		t.Error("the order counts as whole, and was dropped")
	}
}

// What was requeued is known from a mark on, or said to be forgotten.
func TestRequeued(t *testing.T) {
	var r Requeued
	r.Renew()
	for i := range requeuedKept + 10 {
		r.Add(fmt.Sprint(i))
	}
	_, run, end, _ := r.Since(nil, 1)
	for number, want := range map[uint64]string{12: "[12 13 14]", end - 2: fmt.Sprintf("[%d %d]", end-2, end-1), end: "[]"} {
		ids, _, from, ok := r.Since(Marks{run: number, "other": 20}, 3)
		if !ok || from != number || fmt.Sprint(ids) != want {
			t.Errorf("from %d on: %v from %d on, %v", number, ids, from, ok)
		}
	}
	for _, marks := range []Marks{{run: 9}, {run: end + 1}, {"other": end}, nil} {
		if ids, _, number, ok := r.Since(marks, 1); ok || ids != nil || number != end {
			t.Errorf("%v is not said to be forgotten", marks)
		}
	}
	r.Renew()
	if _, _, _, ok := r.Since(Marks{run: end}, 1); ok {
		t.Error("the end of before is not said to be forgotten")
	}
}

// A list ends where the next one begins.
func TestEndOfIsInItsList(t *testing.T) {
	for list := range OrderLists {
		if end := EndOf(list); ListOf(end) != list || list+1 < OrderLists && ListOf(end+1) != list+1 {
			t.Fatalf("list %d ends at %x", list, end)
		}
	}
}
