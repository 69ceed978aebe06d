// Package identity tells one process from all others, and what has become of another one as far as
// this machine shows it.
//
// It owns no state and calls no other package of the ledger. It reads /proc.
//
// # What can fail
//
// Nothing returns an error. Where /proc is missing or hides processes, the fate of another process
// is [FateUnknown], and only its heartbeat tells whether it lives.
package identity
