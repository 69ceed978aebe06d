// Package waves counts the tasks of one topic by the minute of their deadline: those of which an
// attempt has failed, and that are not delivered yet.
//
// A Missed has a row for each minute in which such a task was due, so that the oldest of them is
// known without a look at the others. It is told only of failures: a task that is delivered at its
// first attempt costs nothing here.
//
// The package is passive: its caller holds engine.Engine's mutex, and hands in the time. A Missed
// has at most as many rows as there are tasks in it. Nothing in it can fail.
package waves
