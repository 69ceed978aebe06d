package redisledger

import (
	"strconv"
	"time"
)

// quietShare is the part of FailoverAfter after which a node without signs of life is shown
// as silent: it has missed five of ten.
const quietShare = 2

// A hush is what is told of a node that gives no signs of life. A gap in the watch does not
// end it, as it does what counts for adoption: only a sign of life does.
type hush struct {
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

// hushLocked tells what a node that was watched gives away now.
func (l *Ledger) hushLocked(s *sighting) hush {
	silent, dead := l.others.silentLocked(s), l.deadAfter(&s.entry)
	return hush{s.hush.heard, s.hush.quiet || silent >= dead/quietShare, s.hush.gone || silent >= dead}
}

// noteHush remembers who was quiet at the last poll.
func (l *Ledger) noteHush() {
	w := &l.others
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.nodes {
		s.hush = l.hushLocked(s)
	}
}
