// Package minutes keeps what was counted, minute by minute.
//
// A Recent has how late the first attempts of one topic were in the last minutes, and how many of
// its attempts have failed, on the monotonic clock. A History has that and more of all topics, on
// the wall clock.
//
// A Missed counts, by the minute of their deadline, the tasks of one topic of which an attempt has
// failed, and that are not delivered yet: so the oldest of them is known without a look at the
// others. A task that is delivered at its first attempt costs nothing there. It has at most as many
// rows as there are tasks in it.
//
// An Ended has the tasks of all topics that have ended, by the minute of their deadline, from a day
// before that minute on until a day after it: how, and when the last one did. It has at most
// MaxRows rows with a topic of their own, some 14 MB. What ends beyond counts in rows that stand
// for others.
//
// The package is passive: its caller holds engine.Engine's mutex, and hands in the time. Nothing in
// it can fail.
package minutes
