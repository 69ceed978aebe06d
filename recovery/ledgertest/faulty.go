package ledgertest

import (
	"context"
	"errors"
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// ErrInjected is the error of an injected fault unless Fault.Err is set.
var ErrInjected = errors.New("injected fault")

// An Op is a method of a ledger.
type Op string

// The methods that faults can be injected into. A page is one call of Scan's
// callback.
const (
	Adopt       Op = "adopt"
	Apply       Op = "apply"
	Get         Op = "get"
	Scan        Op = "scan"
	Page        Op = "page"
	GetDead     Op = "get dead"
	ListDead    Op = "list dead"
	Setting     Op = "setting"
	PutSetting  Op = "put setting"
	EachSetting Op = "each setting"
	Find        Op = "find"
	SpoolMark   Op = "inherited"
	Keep        Op = "keep"
	Rows        Op = "rows"
	Close       Op = "close"
)

// A Fault says which calls fail and how.
type Fault struct {
	Op    Op
	Nth   int   // the first call that fails, counting from the injection: 0 or 1 is the next one
	Times int   // how many calls in a row fail: 0 means 1, a negative number means until Heal
	Err   error // nil means ErrInjected
	After bool  // the call is carried out, and its answer is lost
}

// A Faulty is a ledger with injected faults.
type Faulty struct {
	inner recovery.Ledger

	mu        sync.Mutex // guards everything below
	faults    []*Fault
	holds     map[Op]*hold
	calls     map[Op]int
	condition error
	full      bool
}

// A hold delays calls.
type hold struct {
	reached chan struct{} // closed by the first call
	once    sync.Once
	release chan struct{}
}

// Wrap makes a ledger that does what l does until a fault is injected.
func Wrap(l recovery.Ledger) *Faulty {
	return &Faulty{inner: l, holds: map[Op]*hold{}, calls: map[Op]int{}}
}

// Ledger returns f with just the optional interfaces of the wrapped ledger. Use it instead of f
// where that ledger is not a recovery.Finder.
func (f *Faulty) Ledger() recovery.Ledger {
	if _, ok := f.inner.(recovery.Finder); ok {
		return f
	}
	return struct {
		recovery.Ledger
		recovery.Settings
		recovery.Conditioner
		recovery.Archive
	}{f, f, f, f}
}

// Inject adds a fault. If several apply to the same call, the oldest one counts.
func (f *Faulty) Inject(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, &fault)
}

// Down makes every call but Close fail before it is carried out, as in an outage, until Heal.
func (f *Faulty) Down() {
	for _, op := range []Op{Adopt, Apply, Get, Scan, Page, GetDead, ListDead, Setting, PutSetting, EachSetting, Find, SpoolMark, Keep, Rows} {
		f.Inject(Fault{Op: op, Times: -1})
	}
}

// Heal removes all faults.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Hold delays the calls of op before they are carried out, until release is called or their context
// ends; then they fail with its cause. reached is closed when the first call has arrived.
func (f *Faulty) Hold(op Op) (reached <-chan struct{}, release func()) {
	h := &hold{reached: make(chan struct{}), release: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds[op] = h
	return h.reached, sync.OnceFunc(func() {
		f.mu.Lock()
		if f.holds[op] == h {
			delete(f.holds, op)
		}
		f.mu.Unlock()
		close(h.release)
	})
}

// Calls is how often op was called, faults included.
func (f *Faulty) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// SetCondition sets what Condition answers; nil leaves it to the wrapped ledger.
func (f *Faulty) SetCondition(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.condition = err
}

// SetFull sets whether Apply refuses creations with recovery.ErrFull, and writes the rest. It must
// not change between a fault that loses the answer of Apply and the repetition of that batch.
func (f *Faulty) SetFull(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

// do carries out a call, or the fault that applies to it.
func (f *Faulty) do(ctx context.Context, op Op, call func() error) error {
	f.mu.Lock()
	f.calls[op]++
	h := f.holds[op]
	f.mu.Unlock()
	if h != nil {
		h.once.Do(func() { close(h.reached) })
		select {
		case <-h.release:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	fault := f.meet(op)
	if fault == nil {
		return call()
	}
	if fault.After {
		if err := call(); err != nil && !errors.Is(err, recovery.ErrFull) {
			return err
		}
	}
	if fault.Err != nil {
		return fault.Err
	}
	return ErrInjected
}

// meet returns a copy of the fault that applies to this call of op, or nil.
func (f *Faulty) meet(op Op) (met *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.faults[:0]
	for _, fault := range f.faults {
		if fault.Op == op && met == nil {
			switch {
			case fault.Nth > 1:
				fault.Nth--
			default:
				copied := *fault
				met = &copied
				if fault.Times == 0 || fault.Times == 1 {
					continue // used up
				}
				if fault.Times > 0 {
					fault.Times--
				}
			}
		}
		kept = append(kept, fault)
	}
	f.faults = kept
	return met
}
