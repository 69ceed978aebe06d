package cluster

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// newForwarder makes a cluster that has begun to close, so that settlements wait for
// SendLastVerdicts.
func newForwarder(settle func(v task.Verdict, receipts []string) ([]task.Settled, error)) *Cluster {
	var cfg task.Checked
	cfg.Log, cfg.AnswerWithin, cfg.Clock = slog.New(slog.DiscardHandler), time.Minute, time.Now
	s := &Cluster{engine: engine.New(context.Background(), nil, cfg)}
	s.engine.Revoke(nil)
	var one sync.Mutex // queues are sent at the same time
	s.peerCalls.Settle = func(_ context.Context, _ recovery.ShardID, v task.Verdict, receipts []string) ([]task.Settled, error) {
		one.Lock()
		defer one.Unlock()
		return settle(v, receipts)
	}
	return s
}

func (s *Cluster) forwardOne(shard recovery.ShardID, receipt string, v task.Verdict) {
	s.forward(target{shardID: shard}, settlement{outcomeOf(receipt, v), time.Hour})
}

// However many settlements wait for nodes that do not answer, their memory has a bound. There is
// room again when they have arrived.
func TestForwarderIsBounded(t *testing.T) {
	var arrived, calls int
	s := newForwarder(func(_ task.Verdict, receipts []string) ([]task.Settled, error) {
		arrived += len(receipts)
		calls++
		return make([]task.Settled, len(receipts)), nil
	})
	long := strings.Repeat("x", 1<<20)
	for range 100 {
		s.forwardOne(1, "r", task.Verdict{Verb: task.Release, Reason: long})
	}
	if n := s.Forward.ToOwners(); n != 15 || s.Forward.Dropped.Load() != 85 || s.Forward.bytes > maxQueued {
		t.Errorf("%d of 16 MiB wait, %d were dropped: %d bytes", n, s.Forward.Dropped.Load(), s.Forward.bytes)
	}
	for shard := range recovery.ShardID(10) { // a full queue does not take the room of others
		for range 15 {
			s.forwardOne(1+shard, "r", task.Verdict{Verb: task.Release, Reason: long})
		}
	}
	if n := s.Forward.ToOwners(); n != 63 || s.Forward.bytes > maxForwarded {
		t.Errorf("%d of 64 MiB wait: %d bytes", n, s.Forward.bytes)
	}
	s.SendLastVerdicts(t.Context())
	if arrived != 63 || calls != 5 {
		t.Errorf("%d have arrived with %d calls", arrived, calls)
	}
	if s.Forward.bytes != 0 || s.Forward.ToOwners() != 0 {
		t.Errorf("%d bytes are left", s.Forward.bytes)
	}
	s.forwardOne(1, "r", task.Verdict{Verb: task.Ack})
	if s.Forward.ToOwners() != 1 {
		t.Error("there is no room again")
	}
}

// Only what has not arrived is sent again, and only while it matters.
func TestForwarderSendsAgain(t *testing.T) {
	var acked []string
	attempts := make(map[string]int)
	s := newForwarder(func(v task.Verdict, receipts []string) ([]task.Settled, error) {
		if v.Verb == task.Bury && attempts["bury"] == 0 {
			attempts["bury"]++
			return nil, task.ErrUnknown // to all of them
		}
		answers := make([]task.Settled, len(receipts))
		for i, r := range receipts {
			switch attempts[r]++; {
			case r == "stale":
				answers[i].Err = task.ErrStale
			case r == "late" && attempts[r] < 3:
				answers[i].Err = task.ErrUnavailable
			default:
				acked = append(acked, r)
			}
		}
		return answers, nil
	})
	for _, r := range []string{"a", "stale", "late", "b"} {
		s.forwardOne(1, r, task.Verdict{Verb: task.Ack})
	}
	s.SendLastVerdicts(t.Context())
	s.forwardOne(2, "c", task.Verdict{Verb: task.Bury})
	s.SendLastVerdicts(t.Context())
	if want := []string{"a", "b", "late", "c"}; !slices.Equal(acked, want) || attempts["a"] != 1 || attempts["stale"] != 1 {
		t.Errorf("arrived: %v, after %v attempts", acked, attempts)
	}
	s.peerCalls.Settle = func(context.Context, recovery.ShardID, task.Verdict, []string) ([]task.Settled, error) {
		attempts["over"]++
		return nil, task.ErrUnavailable
	}
	s.forward(target{shardID: 1}, settlement{outcomeOf("over", task.Verdict{Verb: task.Ack}), 0})
	if s.SendLastVerdicts(t.Context()); attempts["over"] != 1 || s.Forward.bytes != 0 {
		t.Errorf("what does not matter any more was sent %d times", attempts["over"])
	}
}

// What waits when the time of Close is over is tried once, all of it, until a call fails.
func TestForwarderSendsAllAtTheEnd(t *testing.T) {
	arrived := make(map[recovery.ShardID]int)
	failAfter := 5000
	s := newForwarder(nil)
	s.peerCalls.Settle = func(_ context.Context, shard recovery.ShardID, _ task.Verdict, receipts []string) ([]task.Settled, error) {
		if arrived[shard] >= failAfter {
			return nil, task.ErrUnavailable
		}
		arrived[shard] += len(receipts)
		return make([]task.Settled, len(receipts)), nil
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for range 2500 {
		s.forwardOne(1, "r", task.Verdict{Verb: task.Ack})
	}
	if s.SendLastVerdicts(ended); arrived[1] != 2500 || s.Forward.ToOwners() != 0 {
		t.Errorf("%d of 2,500 have arrived", arrived[1])
	}
	failAfter = 1000
	for range 2500 {
		s.forwardOne(2, "r", task.Verdict{Verb: task.Ack})
	}
	if s.SendLastVerdicts(ended); arrived[2] != 1000 || s.Forward.ToOwners() != 1500 {
		t.Errorf("%d have arrived at a node that ended after 1,000, %d wait", arrived[2], s.Forward.ToOwners())
	}
}

// What has not arrived stays first, and goes together with what has come meanwhile.
func TestForwarderKeepsOrder(t *testing.T) {
	var s *Cluster
	var calls []string
	s = newForwarder(func(_ task.Verdict, receipts []string) ([]task.Settled, error) {
		calls = append(calls, strings.Join(receipts, " "))
		answers := make([]task.Settled, len(receipts))
		if len(calls) == 1 {
			s.forwardOne(1, "d", task.Verdict{Verb: task.Ack})
			answers[1].Err = task.ErrUnavailable
			if n := s.Forward.ToOwners(); n != 4 {
				t.Errorf("%d have not arrived, want 4", n)
			}
		}
		return answers, nil
	})
	for _, r := range []string{"a", "b", "c"} {
		s.forwardOne(1, r, task.Verdict{Verb: task.Ack})
	}
	s.SendLastVerdicts(t.Context())
	if want := []string{"a b c", "b d"}; !slices.Equal(calls, want) || s.Forward.bytes != 0 || s.Forward.Queues() != 0 {
		t.Errorf("sent: %q, want %q; %d bytes are left in %d queues", calls, want, s.Forward.bytes, s.Forward.Queues())
	}
}
