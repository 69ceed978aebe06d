package member

import (
	"strconv"
	"time"
)

// quietShare is the part of FailoverAfter after which a node without heartbeats is shown as
// silent: it has missed five of ten.
const quietShare = 2

// A silence is the state of a node that sends no heartbeats. A gap in the watch resets what
// counts for adoption, but not this: only a heartbeat ends it.
type silence struct {
	lastSign time.Time // when the last heartbeat, or the node, was seen
	quiet    bool      // it has missed some of them
	gone     bool      // it was taken for dead
}

// isSign reports whether a heartbeat's count has grown. A count that Redis has lost, or reset to
// an older state, is no heartbeat.
func isSign(before, now string) bool {
	b, _ := strconv.ParseUint(before, 10, 64) // none is 0
	n, err := strconv.ParseUint(now, 10, 64)
	return err == nil && n > b
}

// silenceLocked returns the current silence of a node.
func (m *Member) silenceLocked(s *peerState) silence {
	silent, dead := m.peers.silentLocked(s), m.deadAfter(&s.entry)
	return silence{s.silence.lastSign, s.silence.quiet || silent >= dead/quietShare, s.silence.gone || silent >= dead}
}

// noteSilence updates the silence of all nodes after a poll.
func (m *Member) noteSilence() {
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.nodes {
		s.silence = m.silenceLocked(s)
	}
}
