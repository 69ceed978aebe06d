// Package memledger is a ledger whose records do not survive the process. It is for tests, and
// for applications that embed Lapse for its timers alone.
//
// The records outlive Close and [Ledger.Crash], so that a test can restart the code under test in
// one process. The same object may be adopted again. Or [Ledger.Reopen] makes another handle on
// the same records; then a holder of the old handle cannot write any more.
//
// By default a scan visits the state at Adopt, oldest first, as the embedded ledger does. With
// [Nominating] it only nominates ids, in no order and some of them twice, as Redis does.
//
// It owns the records and settings that its handles share, under one mutex. It calls packages
// recovery and memshard, and knows neither tasks nor other ledgers.
//
// What can fail: Adopt, with recovery.ErrHeld while another handle is adopted; every other method,
// with recovery.ErrClosed while its handle is not. For other failures wrap the ledger with
// ledgertest.Wrap.
package memledger
