package ledgertest

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
)

// testAdopt: one owner at a time, and sensible terms.
func testAdopt(f *fixture) {
	if f.terms.Shards < 1 || f.terms.MaxChanges < 1 || f.terms.MaxBytes < 1 {
		f.Errorf("Adopt grants %+v", f.terms)
	}
	for _, id := range []string{"a", "order-42", "zzzzzzzzzzzz"} {
		shard := f.terms.ShardOf([]byte(id))
		if shard < 0 || shard >= f.terms.Shards || shard != f.terms.ShardOf([]byte(id)) {
			f.Errorf("ShardOf(%s) = %d of %d", id, shard, f.terms.Shards)
		}
	}
	f.put("kept", pending(noon), "x")

	second := f.harness.Open(f.T)
	defer second.Close()
	if _, err := second.Adopt(f.ctx()); !errors.Is(err, recovery.ErrHeld) {
		f.Fatalf("Adopt of a held ledger: %v, want ErrHeld", err)
	}
	f.put("still-writing", pending(noon), "x")
	if err := f.ledger.Close(); err != nil {
		f.Fatalf("Close: %v", err)
	}
	if _, err := second.Adopt(f.ctx()); err != nil {
		f.Fatalf("Adopt after the owner's Close: %v", err)
	}
	f.ledger = second
}

// testClose: every method returns ErrClosed, again and again.
func testClose(f *fixture) {
	f.put("kept", pending(noon), "x")
	l := f.ledger
	for range 2 {
		if err := l.Close(); err != nil {
			f.Fatalf("Close: %v", err)
		}
	}
	for name, err := range calls(f.ctx(), l) {
		if !errors.Is(err, recovery.ErrClosed) {
			f.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
	f.open()
}

// testCanceled: no method works for a caller whose context has ended, and none does harm.
func testCanceled(f *fixture) {
	f.put("kept", pending(noon), "x")
	ctx, cancel := context.WithCancel(f.ctx())
	cancel()
	for name, err := range calls(ctx, f.ledger) {
		if err == nil || errors.Is(err, recovery.ErrClosed) || errors.Is(err, recovery.ErrLost) {
			f.Errorf("%s with an ended context: %v", name, err)
		}
	}
	f.put("another", pending(noon), "x")
}

// calls calls every method but Adopt and Close with arguments of no consequence.
func calls(ctx context.Context, l recovery.Ledger) map[string]error {
	var b recovery.Batch
	b.Add(recovery.Change{ID: []byte("absent"), From: pending(noon)})
	found := func(int, recovery.Entry) {}
	errs := map[string]error{
		"Apply":    l.Apply(ctx, 0, &b),
		"Get":      l.Get(ctx, 0, []recovery.Ref{{ID: "kept", Next: noon}}, found),
		"Scan":     l.Scan(ctx, func([]recovery.Entry) error { return nil }),
		"GetDead":  l.GetDead(ctx, []string{"kept"}, found),
		"ListDead": l.ListDead(ctx, "topic", recovery.Ref{}, func(recovery.Entry) bool { return true }),
	}
	if s, ok := l.(recovery.Settings); ok {
		_, _, errs["Setting"] = s.Setting(ctx, "name")
		_, errs["PutSetting"] = s.PutSetting(ctx, "name", 0, nil)
		errs["EachSetting"] = s.EachSetting(ctx, "", func(string, []byte, int64) {})
	}
	if finder, ok := l.(recovery.Finder); ok {
		errs["Find"] = finder.Find(ctx, "kept", func(recovery.Entry) {})
	}
	return errs
}
