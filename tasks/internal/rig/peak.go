package rig

import "sync/atomic"

// A Peak is the greatest number that was seen.
type Peak struct{ atomic.Int64 }

// See takes a number into account.
func (p *Peak) See(n int64) {
	for most := p.Load(); n > most && !p.CompareAndSwap(most, n); most = p.Load() {
	}
}
