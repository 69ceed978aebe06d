package ledgertest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// fill creates n pending records and as many dead ones.
func (f *fixture) fill(n int) {
	f.Helper()
	var changes []recovery.Change
	for i := range n {
		changes = append(changes,
			f.change(fmt.Sprintf("task-%d", i), pending(noon+int64(i%7)*1000-int64(i)), fmt.Sprint("record ", i)),
			f.change(fmt.Sprintf("dead-%d", i), dead(fmt.Sprint("topic-", i%3), noon+int64(i%5)), fmt.Sprint("dead ", i)))
		if len(changes) > 500 {
			f.apply(changes...)
			changes = nil
		}
	}
	f.apply(changes...)
}

// testGet reads by id and time, in its shard only.
func testGet(f *fixture) {
	f.fill(20)
	id := "task-3"
	shard := f.terms.ShardOf([]byte(id))
	refs := []recovery.Ref{
		{ID: "absent", Next: noon},
		{ID: id, Next: f.model[id].spot.At},
		{ID: "dead-1", Next: f.model["dead-1"].spot.At},
	}
	hits := 0
	err := f.ledger.Get(f.ctx(), shard, refs, func(i int, e recovery.Entry) {
		hits++
		got := record{e.Spot, string(e.Data)}
		if i != 1 || string(e.ID) != id || e.Shard != shard || got != f.model[id] {
			f.Errorf("Get: position %d is %s of shard %d at %+v", i, e.ID, e.Shard, e.Spot)
		}
	})
	if err != nil || hits != 1 {
		f.Errorf("Get found %d records, want 1: %v", hits, err)
	}
	for other := range f.terms.Shards {
		if other == shard {
			continue
		}
		if err := f.ledger.Get(f.ctx(), other, refs, func(int, recovery.Entry) {
			f.Errorf("shard %d has %s, which belongs to shard %d", other, id, shard)
		}); err != nil {
			f.Fatalf("Get: %v", err)
		}
	}
	if err := f.ledger.Get(f.ctx(), shard, nil, nil); err != nil {
		f.Errorf("Get of nothing: %v", err)
	}
}

// testScan: all that is pending, in pages; an error of page ends it.
func testScan(f *fixture) {
	f.fill(3000)
	f.verify() // reads with the first scan after Adopt

	f.restart()
	stop := errors.New("enough")
	pages := 0
	err := f.scan(func(page []recovery.Entry) error {
		if len(page) == 0 {
			f.Error("Scan handed out an empty page")
		}
		pages++
		return stop
	})
	// Pages of other shards may have been under way.
	if !errors.Is(err, stop) || pages > 8 {
		f.Errorf("Scan went on for %d pages and returned %v", pages, err)
	}
}

// scan visits one page at a time.
func (f *fixture) scan(page func([]recovery.Entry) error) error {
	var mu sync.Mutex
	return f.ledger.Scan(f.ctx(), func(entries []recovery.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		return page(entries)
	})
}

// testScanAgain: a second scan must not return with Data what the first one did: the task may have
// been finished and deleted since.
func testScanAgain(f *fixture) {
	f.fill(500)
	f.restart()
	r := &reader{f: f, loaded: map[string]bool{}, model: model{}}
	stop := errors.New("the connection broke")
	if err := f.scan(func(page []recovery.Entry) error {
		for _, e := range page {
			if e.Data != nil {
				r.loaded[string(e.ID)] = true
			}
		}
		return stop
	}); !errors.Is(err, stop) {
		f.Fatalf("Scan: %v", err)
	}
	f.remove("task-7")
	f.put("task-8", pending(noon*2), "moved")
	if err := recovery.Replay(f.ctx(), f.ledger, r, nil); err != nil {
		f.Fatalf("Replay: %v", err)
	}
	for _, id := range f.model.at(recovery.Pending) {
		if !r.loaded[id] && r.model[id] != f.model[id] {
			f.Errorf("the second scan gives %s as %+v, want %+v", id, r.model[id].spot, f.model[id].spot)
		}
	}
	if _, back := r.model["task-7"]; back {
		f.Error("the second scan brings a deleted record back")
	}
}

// testScanWhileWriting: while a scan runs, records come, move and go. What was
// there at Adopt and stays is found; nothing that has gone gets data.
func testScanWhileWriting(f *fixture) {
	f.fill(2000)
	f.restart()
	begin := model{}
	for id, r := range f.model {
		begin[id] = r
	}
	r := &reader{f: f, loaded: map[string]bool{}, model: model{}}
	step := 0
	err := f.scan(func(page []recovery.Entry) error {
		f.remove(fmt.Sprintf("task-%d", 2*step))
		f.put(fmt.Sprintf("task-%d", 2*step+1), pending(noon*2), "moved")
		f.put(fmt.Sprintf("new-%d", step), pending(noon*3), "new")
		step++
		for _, e := range page {
			if e.Data != nil {
				if got := (record{e.Spot, string(e.Data)}); got != begin[string(e.ID)] {
					f.Errorf("Scan hands out %s as %+v, at Adopt it was %+v", e.ID, e.Spot, begin[string(e.ID)].spot)
				}
			}
			r.model[string(e.ID)] = record{spot: e.Spot, data: "seen"}
		}
		return nil
	})
	if err != nil {
		f.Fatalf("Scan: %v", err)
	}
	for id, before := range begin {
		if before.spot.Place == recovery.Pending && f.model[id] == before && r.model[id] == (record{}) {
			f.Errorf("Scan did not find %s, which never changed", id)
		}
	}
}

// testFind reads pending records by id alone.
func testFind(f *fixture) {
	if _, ok := f.ledger.(recovery.Finder); !ok {
		f.Skip("this ledger is not a Finder")
	}
	f.fill(300)
	f.restart()
	finder := f.ledger.(recovery.Finder)
	for _, id := range []string{"absent", "dead-1"} {
		if err := finder.Find(f.ctx(), id, func(e recovery.Entry) {
			f.Errorf("Find(%s) gives %s", id, e.ID)
		}); err != nil {
			f.Fatalf("Find: %v", err)
		}
	}
	hits := 0
	if err := finder.Find(f.ctx(), "task-5", func(e recovery.Entry) {
		hits++
		if got := (record{e.Spot, string(e.Data)}); string(e.ID) != "task-5" || got != f.model["task-5"] {
			f.Errorf("Find(task-5) gives %s at %+v", e.ID, e.Spot)
		}
		if e.Shard != f.terms.ShardOf(e.ID) {
			f.Errorf("Find(task-5) gives shard %d", e.Shard)
		}
	}); err != nil || hits != 1 {
		f.Fatalf("Find(task-5) found %d: %v", hits, err)
	}
	// From here on it may be finished and deleted at any time.
	f.remove("task-5")
	if err := f.scan(func(page []recovery.Entry) error {
		for _, e := range page {
			if string(e.ID) == "task-5" && e.Data != nil {
				f.Error("Scan hands out with Data what Find handed out before")
			}
		}
		return nil
	}); err != nil {
		f.Fatalf("Scan: %v", err)
	}
}
