// Package ledgertest tests ledgers, and what stands on them.
//
// [Run] is the conformance suite: whatever implements recovery.Ledger passes
// it, with its own [Harness]. [Wrap] puts faults between a ledger and its user:
// a call fails before or after it is carried out, or is held back for as long
// as the test likes.
package ledgertest
