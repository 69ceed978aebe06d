package recovery

import "time"

// Health is what a ledger knows of the storage beneath it, for readiness and for people. A
// field that a ledger does not know is zero.
type Health struct {
	Where   string        // names the storage, without its secrets
	Version string        // of the server; the lowest, where there are several
	Latency time.Duration // of a recent round trip
	// ClockAhead is the server's clock minus this machine's. Lapse compares the clocks of nodes by
	// it, and keeps no deadline by it. ClockError is by how much it may be wrong.
	ClockAhead, ClockError time.Duration
	LastAnswer             time.Time // when the last request that was answered was sent
	Err                    error     // why the storage does not answer; nil when it does
	Warnings               []string  // what an operator should change
	Waiting                []Waiting // reads that make no progress, and the like
}

// Reporter is implemented by ledgers that can describe the state of their storage, also while
// Adopt waits for it.
type Reporter interface {
	// Health never waits for the storage.
	Health() Health
}
