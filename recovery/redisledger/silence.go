package redisledger

import (
	"strconv"
	"time"
)

// quietShare is the part of FailoverAfter after which a node without signs of life is shown
// as silent: it has missed five of ten.
const quietShare = 2

// A silence is what is told of a node that gives no signs of life. A gap in the watch does not
// end it, as it does what counts for adoption: only a sign of life does.
type silence struct {
	heard time.Time // when the last one, or the node, was seen
	quiet bool      // it has missed some of them
	gone  bool      // it was taken for dead
}

// isSign tells whether a heartbeat's count has grown. One that Redis has lost, or put back to
// an older state, is no sign of life.
func isSign(before, now string) bool {
	b, _ := strconv.ParseUint(before, 10, 64) // none is 0
	n, err := strconv.ParseUint(now, 10, 64)
	return err == nil && n > b
}

// silenceLocked tells what a node that was watched gives away now.
func (l *Ledger) silenceLocked(s *peerState) silence {
	silent, dead := l.peers.silentLocked(s), l.deadAfter(&s.entry)
	return silence{s.silence.heard, s.silence.quiet || silent >= dead/quietShare, s.silence.gone || silent >= dead}
}

// noteSilence remembers who was quiet at the last poll.
func (l *Ledger) noteSilence() {
	w := &l.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.nodes {
		s.silence = l.silenceLocked(s)
	}
}
