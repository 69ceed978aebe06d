// Package notice calls memory back when the ledger has noticed something, see recovery.Watcher.
//
// It owns the watcher, the order of notices and memory's last status, under one mutex. It calls no
// other package of the ledger, and memory only from its own goroutine, without a lock. It cannot
// fail; notices that are queued when the ledger is closed are dropped.
package notice
