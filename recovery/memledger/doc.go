// Package memledger is a ledger in which nothing survives the process. It is
// for tests, and for applications that embed Lapse for its timers alone.
//
// The records outlive Close and [Ledger.Crash], so that a test can restart what
// it tests in one process: the same object may be adopted again, or, so that
// whoever still holds the old one cannot write any more, [Ledger.Reopen] gives
// another handle on the same records.
//
// By default a scan hands out the state at Adopt, oldest first, as the embedded
// ledger does. With [Nominating] it only nominates ids, in no order and some of
// them twice, as Redis does. What can fail: Adopt, while another handle is
// adopted. For every other failure wrap the ledger with ledgertest.Wrap.
package memledger
