// Package ledgertest tests ledgers, and code that uses them.
//
// [Run] is the conformance suite: every implementation of recovery.Ledger passes it, with its own
// [Harness]. [Wrap] puts faults between a ledger and its user: a call fails before or after it is
// carried out, or is delayed for as long as the test needs.
//
// It owns a model of the records, and the faults that a test has injected. It calls package
// recovery only, and knows no ledger. What can fail is the test. No program may import it.
package ledgertest
