package tasks

import (
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// park writes down the deliveries that are still open and can be settled by their
// receipts, with what is left of their leases, so that they count after the next
// Open and are not delivered a second time before.
func (s *engine) park() {
	s.mu.Lock()
	defer s.unlock()
	for n, l := range s.open {
		if sl := s.store.Slot(n); l.leasedOut && sl.State == store.Delivering {
			s.parkLocked(n, sl, l)
		}
	}
}

// parkLocked records a delivery with its lease. Memory's own record stays as it is.
func (s *engine) parkLocked(n uint32, sl *store.Slot, l lease) {
	f := s.store.Fields(sl)
	f.State, f.Attempt = record.Parked, l.attempt
	f.LeaseRest, f.Nonce = max(0, (l.until-s.elapsed()).Milliseconds()), l.nonce
	f.Flags = f.Flags&^record.Claimed | record.HasLease
	s.setLocked(sl, store.Parking)
	s.writeLocked(write{slot: n, op: opPark, rec: f.Append(nil)})
}

// unparkLocked goes on with a delivery that was parked in vain.
func (s *engine) unparkLocked(n uint32, sl *store.Slot) {
	s.setLocked(sl, store.Delivering)
	s.writeLocked(write{slot: n, op: opRecord})
	s.notifyLocked(n)
	if u, ok := s.pendingVerdicts[s.open[n].nonce]; ok {
		delete(s.pendingVerdicts, s.open[n].nonce)
		s.concludeLocked(s.byNumber[sl.Topic], n, u.judgement)
	}
}
