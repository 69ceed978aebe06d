package respapi

import (
	"cmp"
	"sync/atomic"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/internal/latency"
	"github.com/lapsehq/lapse/tasks"
)

// counts are what the server has counted since it began.
type counts struct {
	accepted atomic.Int64 // connections
	refused  atomic.Int64 // connections beyond Config.MaxConnections
	closed   edge.Closed  // connections, by a bound
	guesses  atomic.Int64 // tokens that were shown and that the server does not know
	commands atomic.Int64
	failed   atomic.Int64 // commands that were answered with an error
	badInput atomic.Int64 // connections that ended with a protocol error
	unsent   atomic.Int64 // events for other nodes that were dropped, because too much waits
	lost     atomic.Int64 // expired events that were not published, or perhaps not read
	again    atomic.Int64 // expired events that were published again
	slow     atomic.Int64 // subscribers that were cut off because they did not read
}

// A tally counts the calls of one verb, with its subcommands.
type tally struct {
	done, failed atomic.Int64
	took         latency.Histogram
}

// newTallies returns a tally for each verb, and that of unknown commands under "".
func newTallies() map[string]*tally {
	all := map[string]*tally{"": {}}
	for name := range verbs {
		all[name] = &tally{}
	}
	return all
}

// tallyOf returns the tally of a verb; nil: the command is unknown.
func (s *Server) tallyOf(v *verb) *tally {
	switch {
	case v == nil:
		return s.tallies[""]
	case v.parent != nil:
		return s.tallies[v.parent.name]
	}
	return s.tallies[v.name]
}

// count counts commands of one verb that were answered, and how many of them with an error. It
// returns the tally of the verb.
func (s *Server) count(v *verb, all, failed int64) *tally {
	t := s.tallyOf(v)
	s.counts.commands.Add(all)
	t.done.Add(all - failed)
	if failed > 0 {
		s.counts.failed.Add(failed)
		t.failed.Add(failed)
	}
	return t
}

// Connections returns how many connections there are, and how many there have been by outcome:
// accepted, refused (beyond Config.MaxConnections), address (closed at once: its address had
// Config.MaxConnectionsPerAddress), bad_input (accepted, and ended by the server because of bytes
// that are no command), unfinished and unread (closed at Config.MaxConnections for another one: the
// client had not said who it is, or did not read).
func (s *Server) Connections() (now int, total map[string]int64) {
	n := &s.counts
	return s.door.Guests(), map[string]int64{
		"accepted": n.accepted.Load(), "refused": n.refused.Load(), "bad_input": n.badInput.Load(),
		"address": n.closed.Address.Load(), "unfinished": n.closed.Unfinished.Load(), "unread": n.closed.Unread.Load(),
	}
}

// WrongTokens returns how often AUTH or HELLO had a token that the server does not know.
func (s *Server) WrongTokens() int64 { return s.counts.guesses.Load() }

// EachCommand calls visit with how often each verb was answered, how often with an error, and how
// long that took, from when a command was read until its answer was ready to be sent. What a
// command with BLOCK waits for does not count. Commands of a pipeline that run at the same time
// have their answers ready together. It leaves out verbs that were never used. Commands that there
// are not have the name unknown.
func (s *Server) EachCommand(visit func(name string, done, failed int64, took tasks.Latency)) {
	for name, t := range s.tallies {
		if done, failed := t.done.Load(), t.failed.Load(); done+failed > 0 {
			visit(cmp.Or(name, "unknown"), done, failed, t.took.Counts())
		}
	}
}

// Subscribers returns how many clients have subscribed to something, and how many were cut off
// because they did not read.
func (s *Server) Subscribers() (now int, cut int64) {
	s.hub.mu.Lock()
	now = len(s.hub.subscribers)
	s.hub.mu.Unlock()
	return now, s.counts.slow.Load()
}

// EventsDropped returns how many events and messages subscribers have not got, by reason. unsent:
// other nodes did not get them, because too much waited to be sent to them. lost: expired events of
// topics with another way of delivery than keyevent, which came faster than this node can publish
// them, or whose key could not be read; of keyevent, those that a subscriber has perhaps not read,
// beyond what can be kept to be published again.
func (s *Server) EventsDropped() map[string]int64 {
	return map[string]int64{"unsent": s.counts.unsent.Load(), "lost": s.counts.lost.Load()}
}
