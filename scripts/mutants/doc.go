// Command mutants plants one-line faults in the places that keep the promises of the README, one at
// a time, and runs the tests that should notice each. It shows what the tests do not see.
//
// The faults stand in mutants.txt. An entry says which line of which function is replaced, by what,
// which promise breaks, and which tests should fail. It goes by the text of the line, not by its
// number, so that it outlives most changes around it.
//
//	file tasks/internal/engine/settlelocal.go
//	test ./tasks/internal/engine ^TestStaleReceipts$
//
//	3 the receipt of an attempt that has ended acknowledges after a restart
//	@ resumeLocked
//	- if r.Attempt != next {
//	+ if next == 0 {
//
// file and test hold for the entries that follow. The head of an entry is the number of a promise,
// or "-" for a rule of docs/internals/protocol.md that stands behind none of them alone. The piece
// after "-" is a part of one line, which the function has once. The function may be left out where
// the whole file has the piece once. A line "= reason" marks a fault that changes nothing a test
// could see.
//
// The work tree is never changed: the compiler gets patched copies by -overlay. All faults that one
// test binary should notice are compiled into it at once, each as a copy of its function behind a
// switch that the environment sets. So a fault costs the time of its tests and no compilation. A
// fault outside functions is compiled by itself.
//
// The tests run without a fault first. They must pass, and the time that they take then bounds the
// time that they may take with one. The result of each fault is kept in a state file. A run that
// was interrupted goes on where it was; an entry that has changed is tried again.
//
// What can fail: an entry does not apply or does not build any more, because the code has moved on;
// its tests fail without a fault; the fault survives. Each is printed, and makes the command end
// with status 1.
package main
