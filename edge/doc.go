// Package edge decides who comes in by a door of the server, what it may do there, how many
// connections, bytes and waits it may have, and when it has to leave. The doors are packages
// httpapi and respapi. Each speaks a protocol, and asks here: a rule that holds at two doors stands
// here once.
//
//	token             -> Callers     -> Caller: rights, grant, life
//	connection        -> Connections : has its address, or its token, too many?
//	                                   is there a place, or which one gives way?
//	                  -> Door        : serves it, and ends all in order
//	bytes             -> Budget      : have all callers, or has its token, too many?
//	call that waits   -> Waits       : has its token too many?
//	anything else     -> Places      : likewise
//
// It knows the tokens, and the words of package tasks for topics and quotas. It knows neither a
// protocol nor a command, and opens no connection.
//
// # Rights end at once
//
// A Caller is a token with the rights that it has. It does not change. When the token is removed,
// or gets other rights, the life of the Caller ends (Caller.Life), and with it whatever waits on
// its behalf: long-polls, blocked reads, subscriptions, scans. The next command of the same
// connection looks the token up again. So a door never uses rights that it has looked up before a
// wait, or before a queue.
//
// # Strangers
//
// A stranger is a caller who has not said who it is, where there are tokens. Nothing that strangers
// use up is what callers need: their connections give way, and their bytes have a part of their own
// in each Budget. In the functions of this package a nil *Caller is a stranger, and Anyone is a
// caller of a server without tokens.
//
// # What can fail
//
// CheckTokens says all that is wrong with a list of tokens. Nothing here waits but Callers.Admit,
// which keeps the answer to wrong tokens back. Nothing grows with tasks or topics.
package edge
