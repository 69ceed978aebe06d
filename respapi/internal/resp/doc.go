// Package resp reads commands and writes answers in the Redis serialization protocol, versions 2
// and 3 (https://redis.io/docs/latest/develop/reference/protocol-spec/).
//
// It owns the form of the bytes, and the bounds of what one command may take up. It knows neither
// a socket nor a command. It calls no package of Lapse.
//
// What can fail: the bytes are no command (a *ProtocolError, with the wording of Redis, after which
// the connection cannot go on), or a command is too large.
package resp
