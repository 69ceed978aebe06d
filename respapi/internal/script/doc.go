// Package script runs the scripts of EVAL: Lua 5.1 with redis.call, as Redis has it.
//
// It owns what a script may use: steps, time, memory, and the functions that there are. The
// language is that of package gopher-lua, which bounds none of this. What a command does, and
// whom it may serve, is the matter of the caller's Host.
//
//	text -> Cache: parse, rewrite, compile -> Script.Run: state, meter -> Host.Call -> answer
//
// # Bounds
//
// Each instruction counts as a step, and as much memory as the costliest takes that makes one
// value. What may take any amount in one step is rewritten by the compiler as a call of a
// function that counts first (compile.go): texts that are put together, entries far behind the
// end of a table, tables of many values. The functions of the library count what they make.
// There is none whose time its arguments do not bound: no patterns, and nothing that compiles.
//
// # What is kept
//
// Interpreters are used again. Their globals and libraries cannot be changed by a script, and
// what a script has made is not reachable from them.
//
// # What can fail
//
// Run returns an error for a script that ends with one, and says whether it was a bound.
package script
