package memledger_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A harness opens one more handle on the same memory each time.
type harness struct{ last *memledger.Ledger }

func (h *harness) Open(*testing.T) recovery.Ledger {
	h.last = h.last.Reopen()
	return h.last
}

func (h *harness) Crash(*testing.T) { h.last.Crash() }

func TestConformance(t *testing.T) {
	for name, options := range map[string][]memledger.Option{
		"OneShard":   {memledger.Strict()},
		"Shards":     {memledger.Shards(5), memledger.Strict()},
		"Nominating": {memledger.Shards(3), memledger.Nominating(), memledger.Strict()},
	} {
		t.Run(name, func(t *testing.T) {
			ledgertest.Run(t, func(*testing.T) ledgertest.Harness {
				return &harness{memledger.New(options...)}
			})
		})
	}
}

func TestAdoptAgain(t *testing.T) {
	l := memledger.New()
	for range 2 {
		if _, err := l.Adopt(t.Context()); err != nil {
			t.Fatalf("Adopt: %v", err)
		}
		l.Crash()
	}
}

func TestStrictRefusesWrongOrigin(t *testing.T) {
	l := memledger.New(memledger.Strict())
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	spot := recovery.Spot{Place: recovery.Pending, At: 1}
	var b recovery.Batch
	b.Add(recovery.Change{ID: []byte("a"), To: spot, Data: []byte("x")})
	if err := l.Apply(t.Context(), 0, &b); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	b.Add(recovery.Change{ID: []byte("a"), From: recovery.Spot{Place: recovery.Pending, At: 2}, To: recovery.Spot{Place: recovery.Pending, At: 3}, Data: []byte("x")})
	defer func() {
		if recover() == nil {
			t.Error("Apply took a record from where it does not stand")
		}
	}()
	_ = l.Apply(t.Context(), 0, &b)
}
