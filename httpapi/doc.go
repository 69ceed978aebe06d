// Package httpapi serves a scheduler over HTTP: a JSON API under /v1, the health and metrics
// endpoints, the OpenAPI document, and pages for people: a dashboard and a list of the routes.
//
// All routes stand in routes.go; each noun has a file with its handlers. A handler does three
// things: it decodes, calls one method of tasks.Scheduler and encodes. It decides nothing that the
// scheduler could decide, so that an embedding program and a caller over HTTP are treated alike.
//
// It owns the routes, the tokens and their scopes, the form of requests and answers, and the limits
// of what is read and answered at once. It may call packages tasks, and recovery for its types. It
// knows neither a particular ledger nor the wheel nor package cli.
//
// # Input
//
// One strict decoder, scan.go, reads every body over the raw bytes. It refuses unknown fields,
// repeated fields, wrong types, trailing data, invalid UTF-8 and deep nesting before anything is
// scheduled. It does not interpret a payload: the receiver gets the same bytes. Bodies are counted
// against a limit of their own and against one for all requests together, see body.go.
//
// # Failure
//
// Every failure is answered as application/problem+json (RFC 9457). The catalogue of problem types,
// and the one table that maps the scheduler's errors to them, is in problem.go; docs/problems.md is
// generated from it. A problem names fields and never repeats values.
//
// # Access
//
// Each route says in routes.go which scopes open it. A route that says nothing is for admins.
// tokens.go checks the scopes before it reads a body. Without tokens every caller may use every
// route.
//
// # Ending
//
// A long-poll ends when tasks are ready, when its wait is over, when the client has gone or when
// Server.Close is called. What was reserved for a client that went away before the answer is given
// back at once.
package httpapi
