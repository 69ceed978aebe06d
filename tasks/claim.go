package tasks

import (
	"context"
	"encoding/binary"
)

// In a topic that counts crashes, an attempt is recorded before it is delivered:
// a task that kills its process then runs out of attempts like any other.

// claimLocked begins to record the attempt of a task that was taken off its queue.
func (s *Scheduler) claimLocked(n uint32, sl *slot, c *call, i int) {
	rec := s.book.record(sl)
	setAttempt(rec, recordAttempt(rec)+1, recordFlags(rec)|flagClaimed)
	s.setLocked(sl, claiming)
	c.expect(i)
	s.writeLocked(write{slot: n, op: opClaim, call: c, index: i})
}

// unclaimLocked makes a task ready again that was taken but not handed out; the
// attempt that was recorded for it does not count.
func (s *Scheduler) unclaimLocked(n uint32, sl *slot) {
	rec := s.book.record(sl)
	if flags := recordFlags(rec); flags&flagClaimed != 0 {
		setAttempt(rec, recordAttempt(rec)-1, flags&^flagClaimed)
	}
	s.armLocked(n, sl, s.now())
}

// spent tells that a task's last attempt was claimed by a process that ended in it.
func (s *Scheduler) spent(t *topic, sl *slot) bool {
	rec := s.book.record(sl)
	return recordFlags(rec)&flagClaimed != 0 && int(recordAttempt(rec)) >= t.settings.Retry.MaxAttempts
}

// expendLocked ends that attempt.
func (s *Scheduler) expendLocked(n uint32, sl *slot) {
	s.open[n] = lease{attempt: recordAttempt(s.book.record(sl))}
	s.failLocked(n, sl, "the process ended during the last attempt", nil, nil, 0)
}

func setAttempt(rec []byte, attempt uint32, flags uint16) {
	binary.LittleEndian.PutUint32(rec[offAttempt:], attempt)
	binary.LittleEndian.PutUint16(rec[offFlags:], flags)
}

// claim waits until the attempts of taken tasks are recorded and returns, with
// s.mu held, those that may be handed out.
func (s *Scheduler) claim(ctx context.Context, c *call, taken []uint32) []uint32 {
	_ = s.await(ctx, c) // what was not recorded is ready again, or will be
	s.mu.Lock()
	claimed := taken[:0]
	for i, n := range taken {
		if c.errs[i] == nil {
			claimed = append(claimed, n)
		}
	}
	return claimed
}
