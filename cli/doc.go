// Package cli is the command line. It assembles the program: no other package imports all the
// others.
//
// It owns the commands, the settings of the server and the order of start and shutdown. It may call
// every package but tasks' and redisledger's internal ones. Only package main calls it. What can
// fail is a command; its exit code tells how.
//
// `lapse serve` reads as the boot order: settings, ledger, scheduler, HTTP server; and, in the
// other direction, the shutdown. The address is bound before the ledger is opened, and so is that
// of probes (listen.go). A second server is so refused before it touches anything, and /readyz can
// be asked while the server waits for a Redis that cannot be reached yet, and during replay.
//
// A setting has one name everywhere: the flag --max-pending, the variable LAPSE_MAX_PENDING and the
// line max_pending in the YAML file. A flag wins over the environment, which wins over the file.
// All faults are reported at once.
//
// The other commands call a running server through package client. They take its address and token
// from --server and LAPSE_TOKEN. remote.go has what they share, taskverbs.go what is done to tasks
// by id or selection, and each other verb or noun has a file. Only arguments and flags decide what
// a single call does: a variable left behind in the environment must not cancel anything.
//
// Standard output carries results: where the server is and how to try it, the answer of a call, for
// people or with --json as the API gave it, help. Logs and errors go to standard error.
//
// Exit codes, for service managers and scripts:
//
//	0  done; a server: stopped as asked (SIGTERM, SIGINT)
//	1  failed: the message says why. bench: also when a promise was broken
//	2  the process has panicked: a defect of Lapse, and no code that it chooses
//	3  the address, the data directory, the file of an export or the node's name
//	   is in use by another process, another one has taken the tasks over, or a
//	   newer version has written them: starting again at once would not help
//	4  the task is unknown or finished; the topic, the group or the node is unknown; nothing was
//	   found to import
//	5  the state forbids it: the task is being delivered or dead, the id is taken,
//	   the receipt is stale, the settings have changed
//	6  the server cannot be reached, is unavailable or overloaded, or the outcome is
//	   unknown: trying again may help
//	7  not allowed: the token is missing or unknown, or does not open this
//	64 the command line, a setting or a field is wrong; nothing was touched
//	130 interrupted before it was done
//
// exit.go maps errors to them.
//
// The first SIGTERM or SIGINT stops in an orderly way. A second one ends the process at once, as
// the signal would by itself: that is no more dangerous than any other crash. SIGHUP makes a server
// read the files of its tokens and of its certificate again; with neither it does nothing.
package cli
