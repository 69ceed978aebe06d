// Package minutes keeps what was counted in the last minutes, minute by minute.
//
// A Recent has how late the first attempts of one topic were, and how many of its attempts have
// failed, on the monotonic clock. A History has that and more of all topics, on the wall clock.
//
// The package is passive: its caller holds engine.Engine's mutex, and hands in the time. What it
// keeps has a fixed size. Nothing in it can fail.
package minutes
