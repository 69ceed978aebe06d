package campaign

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/scripts/crash"
)

// Faults are all kinds of fault by the names that select them for a campaign.
var Faults = map[string]crash.Trouble{
	"kill":     crash.Killed,
	"stop":     crash.Stopped,
	"cut":      crash.CutOff,
	"halfopen": crash.HalfOpen,
	"slow":     crash.Slow,
	"deaf":     crash.Deaf,
	"drain":    crash.Drained,
	"handover": crash.HandedOver,
	"restart":  crash.Restarted, // as crash.HandedOver, where the flags have no handover
	"down":     crash.Down,
	"hung":     crash.Hung,
	"rewind":   crash.Rewound,
	"failover": crash.FailedOver,
	"roll":     Rolled,
}

// Rolled is a restart of all nodes, one after the other.
const Rolled crash.Trouble = "rolled"

// weights say how often a fault is chosen. A kind that is not named has 1.
var weights = map[crash.Trouble]int{
	crash.Killed: 3, crash.Stopped: 3, crash.CutOff: 4, crash.Rewound: 5, crash.FailedOver: 5, crash.Down: 2, crash.Hung: 2,
}

// A PlannedFault is one fault of one node, or of Redis.
type PlannedFault struct {
	Trouble crash.Trouble
	Node    int           // -1: Redis
	Length  time.Duration // until it ends; of a loss, the time of lost writes
	Reset   bool          // connections break, instead of hanging
}

func (m PlannedFault) String() string {
	where := "redis"
	if m.Node >= 0 {
		where = Name(m.Node)
	}
	return fmt.Sprintf("%s %s for %s", where, m.Trouble, m.Length.Round(time.Millisecond))
}

// Name is the name of a node.
func Name(n int) string { return string(rune('a' + n)) }

// A Round is the faults of the same time, and the rest before it. The second of two begins when
// half of the first one is over.
type Round struct {
	Rest   time.Duration
	Faults []PlannedFault
}

func (r Round) String() string {
	parts := make([]string, len(r.Faults))
	for i, m := range r.Faults {
		parts[i] = m.String()
	}
	return fmt.Sprintf("after %s: %s", r.Rest.Round(time.Millisecond), strings.Join(parts, ", "))
}

// Settings are the input of a plan besides the seed.
type Settings struct {
	Nodes         int
	Duration      time.Duration
	FailoverAfter time.Duration
	Faults        []crash.Trouble
}

// Plan makes the rounds of a seed. They take about Duration.
func Plan(seed uint64, s Settings) (rounds []Round) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var bag []crash.Trouble
	kinds := slices.Clone(s.Faults)
	slices.Sort(kinds)
	for _, t := range kinds {
		for range max(1, weights[t]) {
			bag = append(bag, t)
		}
	}
	// All kinds once before any comes again, as far as there is time.
	first := slices.Clone(kinds)
	rng.Shuffle(len(first), func(i, j int) { first[i], first[j] = first[j], first[i] })
	took := time.Duration(0)
	for len(bag) > 0 && took < s.Duration {
		var t crash.Trouble
		if len(first) > 0 {
			t, first = first[0], first[1:]
		} else {
			t = bag[rng.IntN(len(bag))]
		}
		r := Round{Rest: 300*time.Millisecond + time.Duration(rng.Int64N(int64(1500*time.Millisecond)))}
		r.Faults = []PlannedFault{planFault(rng, s, t)}
		if second := pick(rng, bag, beside(t)); second != "" && s.Nodes > 2 && rng.IntN(3) == 0 {
			m := planFault(rng, s, second)
			for m.Node == r.Faults[0].Node {
				m.Node = rng.IntN(s.Nodes)
			}
			r.Faults = append(r.Faults, m)
		}
		took += r.length(s)
		rounds = append(rounds, r)
	}
	return rounds
}

// length is about how long a round takes.
func (r Round) length(s Settings) time.Duration {
	most := time.Duration(0)
	for i, m := range r.Faults {
		l := m.Length + time.Duration(i)*r.Faults[0].Length/2
		switch {
		case Loses(m.Trouble):
			l += Notice(s.FailoverAfter) + time.Second
		case m.Trouble == Rolled:
			l += time.Duration(s.Nodes) * 2 * time.Second
		}
		most = max(most, l)
	}
	return r.Rest + most + time.Second
}

// Loses reports whether Redis loses confirmed writes by a fault.
func Loses(t crash.Trouble) bool { return t == crash.Rewound || t == crash.FailedOver }

// Notice is for how long no node has a fault after Redis has lost writes, so that the nodes have
// noticed and written them again.
func Notice(failoverAfter time.Duration) time.Duration { return failoverAfter + 2*time.Second }

// ofRedis reports whether a fault is one of Redis.
func ofRedis(t crash.Trouble) bool {
	return Loses(t) || t == crash.Down || t == crash.Hung
}

// beside returns a function that reports whether a fault of a node may begin while t lasts. None
// may beside a loss, see Notice, nor beside a fault that waits for the other nodes.
func beside(t crash.Trouble) func(crash.Trouble) bool {
	if Loses(t) || t == Rolled || t == crash.Drained {
		return func(crash.Trouble) bool { return false }
	}
	return func(other crash.Trouble) bool {
		return !ofRedis(other) && other != Rolled && other != crash.Drained
	}
}

func pick(rng *rand.Rand, bag []crash.Trouble, may func(crash.Trouble) bool) crash.Trouble {
	bag = slices.DeleteFunc(slices.Clone(bag), func(t crash.Trouble) bool { return !may(t) })
	if len(bag) == 0 {
		return ""
	}
	return bag[rng.IntN(len(bag))]
}

// planFault chooses the node, and the length. Half of the faults that a process survives are over
// before other nodes may adopt its shards.
func planFault(rng *rand.Rand, s Settings, t crash.Trouble) PlannedFault {
	m := PlannedFault{Trouble: t, Node: -1, Reset: rng.IntN(2) == 0}
	if !ofRedis(t) && t != Rolled {
		m.Node = rng.IntN(s.Nodes)
	}
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	short := rng.IntN(2) == 0
	long := s.FailoverAfter + s.FailoverAfter/2 + upTo(s.FailoverAfter)
	switch t {
	case crash.Rewound, crash.FailedOver:
		m.Length = 200*time.Millisecond + upTo(1800*time.Millisecond)
	case crash.Restarted, crash.HandedOver, crash.Drained, Rolled:
	case crash.Killed:
		if m.Length = long; short {
			m.Length = upTo(s.FailoverAfter / 5)
		}
	default:
		if m.Length = long; short {
			m.Length = upTo(s.FailoverAfter * 6 / 10)
		}
	}
	return m
}
