package redisledger

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A server of several is down: a node that sends heartbeats is certain of its shards there as well,
// unless others may have adopted them before it went down.
func TestCertainOfWhatIsDown(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	join(t, server.URL(), "b", still)
	a.member.KeepOnce()
	long := time.Now().Add(-2 * time.Hour)
	tasks := a.member.Term(1).Keys.Tasks()
	server.Do("rename", tasks, "aside")
	server.Do("set", tasks, "what answers an error")
	a.member.Probe().SeenHeld(long)
	a.member.KeepOnce()
	if !a.Standing().Certain || a.Health().Err == nil {
		t.Errorf("certain is %v, though the heartbeat was answered; Health: %v", a.Standing().Certain, a.Health().Err)
	}
	a.member.Probe().SeenHeld(long)
	a.member.Answered(long)
	a.member.KeepOnce()
	if a.Standing().Certain {
		t.Error("certain of what others may have adopted")
	}
	server.Do("rename", "aside", tasks)
	a.member.KeepOnce()
	if !a.Standing().Certain || a.Health().Err != nil {
		t.Errorf("certain is %v, though all was seen; Health: %v", a.Standing().Certain, a.Health().Err)
	}
}

// Certainty ends before others may adopt, and only without an answer.
func TestCertain(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	ago := func(d time.Duration) recovery.Standing {
		at := time.Now().Add(-d)
		a.member.Probe().SeenHeld(at)
		return a.Standing()
	}
	if got, want := ago(2*time.Hour), (recovery.Standing{Alone: true, Certain: true, FailoverAfter: time.Hour}); got != want {
		t.Errorf("alone, after a long time: %+v", got)
	}
	join(t, server.URL(), "b", still)
	a.member.KeepOnce()
	for after, certain := range map[time.Duration]bool{0: true, 53 * time.Minute: true, 55 * time.Minute: false, 2 * time.Hour: false} {
		if got, want := ago(after), (recovery.Standing{Certain: certain, FailoverAfter: time.Hour}); got != want {
			t.Errorf("after %v: %+v, want %+v", after, got, want)
		}
	}
	// Its heartbeats are answered, but a shard cannot be read.
	ago(2 * time.Hour)
	s := a.member.Term(0)
	server.Do("hset", s.Keys.Tasks(), layout.OwnerField, "b#x#9")
	release := a.member.Probe().HoldShard(0)
	a.member.KeepOnce()
	release()
	if a.Standing().Certain {
		t.Error("certain though a shard was not seen to be held")
	}
	a.member.KeepOnce() // notices the loss; memory is told by another goroutine
	eventually(t, "it is certain of what is left", func() bool { return a.Standing().Certain })
}
