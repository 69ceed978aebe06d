package redistest

import "testing"

// TestRejoin: one failover after the other, each of which loses the writes made while the
// replica was shut out.
func TestRejoin(t *testing.T) {
	s := StartSentinel(t)
	for range 2 {
		s.Master.Do("set", "kept", "1")
		s.Master.Do("wait", 1, 5000)
		s.ShutReplicaOut()
		s.Master.Do("set", "lost", "1")
		s.FailOver()
		s.Rejoin()
		if kept, lost := s.Master.Do("exists", "kept"), s.Master.Do("exists", "lost"); kept != int64(1) || lost != int64(0) {
			t.Errorf("the new master has %v of what was kept, and %v of what was lost", kept, lost)
		}
		s.Master.Do("del", "kept")
	}
}
