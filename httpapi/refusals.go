package httpapi

import "sync/atomic"

// A refusal is a bound of the server that a caller has met. Its text is a label of a metric.
type refusal uint8

const (
	refusedBody refusal = iota
	refusedAnswer
	refusedPoll
	refusedStream
	refusedSite
	refusedHost
	refusedToken
	numberRefusals
)

var refusalNames = [numberRefusals]string{
	refusedBody:   "body",
	refusedAnswer: "answer",
	refusedPoll:   "poll",
	refusedStream: "event_stream",
	refusedSite:   "other_site",
	refusedHost:   "host",
	refusedToken:  "token",
}

type refusals [numberRefusals]atomic.Int64

// refuse counts a request that met a bound, and returns its answer.
func (s *Server) refuse(why refusal, p *Problem) *Problem {
	s.refusals[why].Add(1)
	return p
}

// Refusals returns how many requests, or connections, have met which bound of the server since its
// start: body and answer (too many bytes of them in memory), poll (too many wait), event_stream
// (too many are open), address (connections closed because their address has too many), unfinished
// (connections closed at max_connections before their request was complete), unread (connections
// closed at max_connections because their caller did not read the answer), other_site and host
// (requests refused because a page of another site made them, or because their host name is not the
// server's), token (requests and logins with a token that the server does not know).
func (s *Server) Refusals() map[string]int64 {
	counts := map[string]int64{
		"address": s.closed.Address.Load(), "unfinished": s.closed.Unfinished.Load(), "unread": s.closed.Unread.Load(),
	}
	for why, name := range refusalNames {
		counts[name] = s.refusals[why].Load()
	}
	return counts
}
