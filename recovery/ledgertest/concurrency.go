package ledgertest

import (
	"context"
	"fmt"
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// testConcurrently lets many callers write through the committer while others read, and some calls
// get no answer.
func testConcurrently(f *fixture) {
	const callers, rounds = 16, 12
	faulty := Wrap(f.ledger)
	for n := range 10 {
		faulty.Inject(Fault{Op: Apply, Nth: 3 * n, After: n%2 == 0})
	}
	committer := recovery.NewCommitter(recovery.CommitterConfig[chan<- error]{
		Ledger: faulty,
		Terms:  f.terms,
		Log:    quiet(),
		Done: func(_ int, tags []chan<- error, err error) {
			for _, answer := range tags {
				answer <- err
			}
		},
	})

	ctx, stopReading := context.WithCancel(f.ctx())
	var readers sync.WaitGroup
	for _, read := range []func(){
		func() { _ = f.ledger.Scan(ctx, func([]recovery.Entry) error { return nil }) },
		func() { _ = f.ledger.GetDead(ctx, []string{"c1-r1", "c2-r2"}, func(int, recovery.Entry) {}) },
		func() {
			_ = f.ledger.ListDead(ctx, "", recovery.Ref{}, func(recovery.Entry) bool { return true })
		},
		func() {
			_ = f.ledger.Get(ctx, 0, []recovery.Ref{{ID: "c1-r1", Next: noon}}, func(int, recovery.Entry) {})
		},
	} {
		readers.Go(func() {
			for ctx.Err() == nil {
				read()
			}
		})
	}

	var mu sync.Mutex // guards f.model
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for r := range rounds {
				id := fmt.Sprintf("c%d-r%d", c, r)
				for i, to := range []recovery.Spot{
					pending(noon), pending(noon + int64(r)), dead("topic", noon), pending(noon + 1),
				}[:1+r%4] {
					mu.Lock()
					change := f.change(id, to, fmt.Sprint(id, " step ", i))
					mu.Unlock()
					answer := make(chan error, 1)
					committer.Submit(f.terms.ShardOf(change.ID), change, answer)
					if err := <-answer; err != nil {
						f.Errorf("%s: %v", id, err)
						return
					}
					mu.Lock()
					f.model.apply(change)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	stopReading()
	readers.Wait()
	if err := committer.Close(f.ctx()); err != nil {
		f.Errorf("Close: %v", err)
	}
}
