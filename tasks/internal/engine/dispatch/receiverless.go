package dispatch

// A deliverer may find that it has no receiver at the moment. Then the workers of its line rest,
// and the tasks wait in the queue. A probe, one task of one worker, finds out whether there is a
// receiver again. The caller says when a probe is due.

// A probe says whether a worker may begin for a line without a receiver.
type probe uint8

const (
	noProbe   probe = iota // none may
	probeDue               // one may be started
	probeSent              // one was started, and may take one task
)

// Lack has the workers of a line rest: its deliverer has no receiver.
func (b *Board) Lack(l *Line) { l.lacks, l.probe = true, noProbe }

// Probe lets one task of a line without a receiver begin.
func (b *Board) Probe(l *Line) []Action {
	if l.lacks && l.probe == noProbe {
		l.probe = probeDue
	}
	return b.Wake(l)
}

// Receive ends the rest of a line: its deliverer has a receiver, or may have one.
func (b *Board) Receive(l *Line) []Action {
	l.lacks, l.probe = false, noProbe
	return b.Wake(l)
}

// Lacks reports whether the line's deliverer has no receiver, as far as is known.
func (l *Line) Lacks() bool { return l.lacks }

// Rests reports whether the line lacks a receiver, and it is not time to look for one.
func (l *Line) Rests() bool { return l.lacks && l.probe == noProbe }

// still reports whether no worker may be started because of that.
func (l *Line) still() bool { return l.lacks && l.probe != probeDue }

// probed returns how many of n deliveries a worker of this process may begin.
func (l *Line) probed(n int) int {
	switch {
	case !l.lacks:
		return n
	case l.probe == probeSent:
		return min(n, 1)
	}
	return 0
}

// endProbe lets another worker begin if the one that was started for a probe has found no task. If
// it is another one that ends, that one finds that it may not begin.
func (l *Line) endProbe() {
	if l.probe == probeSent {
		l.probe = probeDue
	}
}
