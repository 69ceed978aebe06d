package respapi

import (
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/respapi/internal/keyid"
)

// KeyID returns the id of a key.
func KeyID(key string) string {
	id, _ := keyid.Encode([]byte(key))
	return id
}

// Wanted reports whether a subscriber of any node hears expired events.
func (s *Server) Wanted() bool { return s.wanted()&classExpired != 0 }

// WantedAt returns how many other nodes are known to have a subscriber of expired events.
func (s *Server) WantedAt() int { return len(s.peers.with(classExpired)) }

// CountDropped counts events that subscribers have not got.
func (s *Server) CountDropped(unsent, lost int64) {
	s.counts.unsent.Add(unsent)
	s.counts.lost.Add(lost)
}

// Unread returns how many bytes of answers are made and not sent yet.
func (s *Server) Unread() int64 {
	known, strangers := s.unread.Used()
	return known + strangers
}

// MostPushedInAll is how many bytes of messages may wait before few may for each subscriber.
const MostPushedInAll = mostPushedInAll

// CountPushed counts bytes of messages that wait for subscribers, and returns how many there are.
func (s *Server) CountPushed(bytes int64) int64 { return s.pushed.Add(bytes) }

// MostKeptInAll is how many bytes of transactions all connections may keep.
const MostKeptInAll = mostKeptInAll

// CountKept counts bytes of transactions, and returns how many there are.
func (s *Server) CountKept(bytes int64) int64 {
	s.kept.For(edge.Anyone).Add(bytes)
	known, strangers := s.kept.Used()
	return known + strangers
}

// MergeAcks adds to states what a node has answered, and returns the answer to the client after it
// and an earlier failure.
func MergeAcks(states, answer []byte, earlier, failed error) string {
	if err := graver(earlier, mergeAcks(states, answer, failed)); err != nil {
		return errorText(err)
	}
	return ""
}

// WaitingFor returns how many changes wait for the turn of a key.
func (s *Server) WaitingFor(key string) int {
	stripe := s.turns.stripe(KeyID(key))
	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	return len(stripe.waiting)
}

// Changing reports whether a change of a key has its turn.
func (s *Server) Changing(key string) bool {
	stripe := s.turns.stripe(KeyID(key))
	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	return stripe.taken
}

// ChainWithin sets how long drafts of a chain are run before it is written.
func (s *Server) ChainWithin(d time.Duration) { s.turns.within = d }

// Receivers returns how many subscribers of this node count as receivers.
func (s *Server) Receivers() int {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	return s.hub.events + s.hub.spaces
}

// Confirmed returns how many bytes the machines of subscribers have confirmed.
func (s *Server) Confirmed() (n int64) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for u := range s.hub.subscribers {
		n += u.out.state().taken
	}
	return n
}

// CountDoubted returns how many events are to be published again.
func (s *Server) CountDoubted() int {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	return s.hub.doses.doubted.events
}

// Doses returns how many events of so many doses are given up, are to be published again, and were
// taken in the last minute. The doses come at such a distance.
func Doses(keys []string, many int, doubted bool, apart time.Duration) (lost int64, again, taken int) {
	var all doses
	u := &subscriber{unread: doubted}
	now := time.Now()
	for range many {
		lost += all.add(&dose{by: []*subscriber{u}, keys: keys}, now)
		now = now.Add(apart)
	}
	return lost, all.doubted.events, all.taken.events
}

// Verbs returns the names of all verbs, those of subcommands after that of their verb.
func Verbs() (list []string) {
	for _, name := range names() {
		list = append(list, name)
		for _, sub := range slices.Sorted(maps.Keys(verbs[name].subs)) {
			list = append(list, name+" "+sub)
		}
	}
	return list
}
