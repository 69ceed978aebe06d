// Package cli is the command line, and the place where everything is put
// together: no other package knows all the others.
//
// `lapse serve` reads as the boot order: settings, ledger, scheduler, HTTP
// server; and, in the other direction, the shutdown. The address is bound
// before the ledger is opened, so that a second server is refused before it
// touches anything, and /readyz can be asked while the server waits for a Redis
// that is not there yet, and while replay runs.
//
// A setting has one name everywhere: the flag --max-pending, the variable
// LAPSE_MAX_PENDING and the line max_pending in the YAML file. A flag wins over
// the environment, which wins over the file. All faults are reported at once.
//
// Standard output carries what was asked for: where the server is and how to
// try it, the version, help. Logs and errors go to standard error.
//
// Exit codes, for service managers and scripts:
//
//	0  stopped as asked (SIGTERM, SIGINT), or nothing to do
//	1  failed: the message says why. bench: also when it was interrupted, or a
//	   promise was broken
//	2  the command line or a setting is wrong; nothing was touched
//	3  the address, the data directory or the node's name is in use by another
//	   process, or another one has taken the tasks over: starting again at once
//	   would not help
//
// The first SIGTERM or SIGINT stops in an orderly way. A second one ends the
// process at once, as the signal would by itself: that is no more dangerous
// than any other crash.
package cli
