// Package waves counts tasks by the minute of their deadline.
//
// A Missed has those of one topic of which an attempt has failed, and that are not delivered yet.
// It has a row for each minute in which such a task was due, so that the oldest of them is known
// without a look at the others. It is told only of failures: a task that is delivered at its first
// attempt costs nothing there. It has at most as many rows as there are tasks in it.
//
// An Ended has those of all topics that have ended, from a day before their minute on until a day
// after it: how, and when the last one did. It has at most MaxRows rows with a topic of their own,
// some 14 MB. What ends beyond counts in rows that stand for others.
//
// The package is passive: its caller holds engine.Engine's mutex, and hands in the time. Nothing in
// it can fail.
package waves
