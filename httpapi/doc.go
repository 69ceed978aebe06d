// Package httpapi is the HTTP face of a scheduler: a JSON API under /v1, the
// health and metrics endpoints, the OpenAPI document, and two pages for people,
// a dashboard and a list of the routes.
//
// All routes stand in routes.go; each noun has a file with its handlers. A
// handler does three things: it decodes, calls one method of tasks.Scheduler and
// encodes. Nothing is decided here that the scheduler could decide, so that an
// embedding program and a caller over HTTP are treated alike.
//
// # Input
//
// Every body is read by one strict decoder, scan.go, over the raw bytes. Unknown
// fields, fields given twice, wrong types, trailing data, invalid UTF-8 and deep
// nesting are refused before anything is scheduled. A payload is not interpreted
// at all: its very bytes go to the receiver. Bodies are counted against a limit
// of their own and against one for all requests together, see body.go.
//
// # Failure
//
// Every failure is answered as application/problem+json (RFC 9457). The catalogue
// of problem types, and the one table that maps the scheduler's errors to them,
// is in problem.go; docs/problems.md is generated from it. A problem names fields
// and never repeats values.
//
// # Who may call
//
// Each route says in routes.go which scopes open it, and one that says nothing is for
// admins. tokens.go checks it before anything of a body is read. Without tokens
// everybody may do anything.
//
// # Ending
//
// A long-poll ends when tasks are ready, when its wait is over, when the client
// has gone or when Server.Close is called. What was reserved for a client that
// went away before it could be told is given back at once.
package httpapi
