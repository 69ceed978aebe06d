// Package ledgertest tests ledgers, and code that uses them.
//
// [Run] is the conformance suite: every implementation of recovery.Ledger passes it, with its own
// [Harness]. [Wrap] puts faults between a ledger and its user: a call fails before or after it is
// carried out, or is delayed for as long as the test needs.
package ledgertest
