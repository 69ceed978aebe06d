// Package wheel orders deadlines in memory. It knows no task, no ledger and
// no Redis: a deadline is a Unix time in milliseconds, and what is due then is
// a bare uint64 that only the caller understands.
//
// It owns the entries and their order, and calls no other package of Lapse. Two types share the
// work.
//
// [Wheel] is the data structure: a hierarchical timing wheel (Varghese and
// Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987). It has no lock,
// no clock and no goroutine; the caller passes the time in. Entries live in a
// slab and are linked by index, so adding and cancelling are O(1), allocate
// nothing once the slab is warm, and give the garbage collector nothing to
// mark.
//
// [Runner] makes a Wheel run: it owns one behind a mutex and lets its buckets wait in a heap-based
// delay queue, and for the last two milliseconds for a timer of the operating system, because the
// Go runtime waits in whole milliseconds on Linux. When a bucket's time has come, it is cascaded to
// a finer level or fired, in batches, never a goroutine per timer. The mutex is taken anew for each
// batch, so that no other caller waits for a whole burst, and timers that are not in a batch yet
// can still be cancelled. A bucket with more than half a batch takes turns with what is due after
// it: many timers of one millisecond do not make the others late.
//
// What can fail: [NewRunner], with what is wrong with its Config. New and Add of a [Wheel] panic at
// a misuse that their comments name, or at more than 2^32 entries.
//
// What can go wrong outside, and what happens then:
//
//   - The clock jumps forward, or the machine was suspended: [Runner.Nudge] or
//     [Runner.Overdue] reads the clock again and fires what has become due.
//   - The clock is set back: entries keep their deadlines and wait for them on
//     the new clock; nothing is fired early.
//   - The runner is closed while others add: their timers are refused, and
//     Close never hangs.
package wheel
