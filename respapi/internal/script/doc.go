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
// Each instruction counts as a step, and as much memory as the costliest takes. Two operations
// may take any amount in one step: a text that is put together, and an entry far behind the end
// of a table. The compiler rewrites both as calls of functions that count first (rewrite.go). The
// library has no function whose time its arguments do not bound: no patterns, and nothing that
// compiles.
//
// # What can fail
//
// Run returns an error for a script that ends with one, and says whether it was a bound.
package script
