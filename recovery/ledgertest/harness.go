package ledgertest

import (
	"context"
	"testing"

	"github.com/lapsehq/lapse/recovery"
)

// A Harness gives a test one storage, empty at first, and ledgers on it.
type Harness interface {
	// Open returns a ledger on the storage that is not adopted yet. A test may hold several at
	// once, as several processes would.
	Open(t *testing.T) recovery.Ledger
	// Crash ends, in effect, the process that holds the storage: without any clean-up by the
	// ledger that was adopted last, and so that another one can adopt it. What that ledger does
	// afterwards must not reach the storage.
	Crash(t *testing.T)
}

// Run runs the conformance suite. It calls fresh for each test, which cleans up with t.Cleanup.
func Run(t *testing.T, fresh func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		test func(*fixture)
	}{
		{"Adopt", testAdopt},
		{"Close", testClose},
		{"Canceled", testCanceled},
		{"Changes", testChanges},
		{"RepeatedBatch", testRepeatedBatch},
		{"Records", testRecords},
		{"BatchLimits", testBatchLimits},
		{"Get", testGet},
		{"Scan", testScan},
		{"ScanWhileWriting", testScanWhileWriting},
		{"ScanAgain", testScanAgain},
		{"GetDead", testGetDead},
		{"ListDead", testListDead},
		{"ListDeadPages", testListDeadPages},
		{"Settings", testSettings},
		{"SettingsConcurrently", testSettingsConcurrently},
		{"DeletedSettings", testDeletedSettings},
		{"ChangedSettings", testChangedSettings},
		{"Archive", testArchive},
		{"Find", testFind},
		{"Concurrently", testConcurrently},
		{"CrashAtEveryStep", testCrashAtEveryStep},
		{"Random", testRandom},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fixture{T: t, harness: fresh(t), model: model{}}
			f.open()
			c.test(f)
			f.verify()
		})
	}
}

// A fixture is one test's storage, the ledger that holds it now, and what should
// be in it.
type fixture struct {
	*testing.T
	harness Harness
	ledger  recovery.Ledger // adopted
	terms   recovery.Terms
	model   model
}

func (f *fixture) ctx() context.Context { return f.Context() }

// open opens and adopts the storage.
func (f *fixture) open() {
	f.Helper()
	f.ledger = f.harness.Open(f.T)
	terms, err := f.ledger.Adopt(f.ctx())
	if err != nil {
		f.Fatalf("Adopt: %v", err)
	}
	f.terms = terms
	ledger := f.ledger
	f.Cleanup(func() { _ = ledger.Close() })
}

// restart closes the ledger and opens it again.
func (f *fixture) restart() {
	f.Helper()
	if err := f.ledger.Close(); err != nil {
		f.Fatalf("Close: %v", err)
	}
	f.open()
}

// crash abandons the ledger and opens the storage again.
func (f *fixture) crash() {
	f.Helper()
	f.harness.Crash(f.T)
	f.open()
}

// verify restarts the ledger and compares all that it holds with the model.
func (f *fixture) verify() {
	f.Helper()
	f.restart()
	got := f.read(f.ledger)
	if diff := f.model.diff(got); diff != "" {
		f.Fatalf("the ledger does not hold what it should:\n%s", diff)
	}
}

// apply writes changes as one batch a shard, and updates the model. A dead record that moves among
// the dead goes by way of the pending, in a batch before.
func (f *fixture) apply(changes ...recovery.Change) {
	f.Helper()
	var before []recovery.Change
	for i := range changes {
		if c := &changes[i]; c.To.Place == recovery.Dead && c.From.Place == recovery.Dead {
			way := pending(c.To.At)
			before = append(before, recovery.Change{ID: c.ID, From: c.From, To: way, Data: c.Data})
			c.From = way
		}
	}
	if len(before) > 0 {
		f.apply(before...)
	}
	batches := map[int]*recovery.Batch{}
	for _, c := range changes {
		shard := f.terms.ShardOf(c.ID)
		if batches[shard] == nil {
			batches[shard] = new(recovery.Batch)
		}
		batches[shard].Add(c)
		f.model.apply(c)
	}
	for shard, b := range batches {
		if err := f.ledger.Apply(f.ctx(), shard, b); err != nil {
			f.Fatalf("Apply: %v", err)
		}
	}
}
