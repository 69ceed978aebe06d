package campaign

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/scripts/crash"
)

func settings() Settings {
	s := Settings{Nodes: 5, Duration: 4 * time.Minute, FailoverAfter: 2 * time.Second}
	for name, t := range Faults {
		if name != "failover" {
			s.Faults = append(s.Faults, t)
		}
	}
	return s
}

// TestPlanFollowsFromTheSeed: the same seed gives the same plan, another seed another one, and
// every kind of fault occurs.
func TestPlanFollowsFromTheSeed(t *testing.T) {
	one, same, other := Plan(7, settings()), Plan(7, settings()), Plan(8, settings())
	if fmt.Sprint(one) != fmt.Sprint(same) {
		t.Errorf("a seed gives two plans:\n%v\n%v", one, same)
	}
	if fmt.Sprint(one) == fmt.Sprint(other) {
		t.Error("two seeds give the same plan")
	}
	seen := map[crash.Trouble]bool{}
	for _, r := range one {
		for _, m := range r.Faults {
			seen[m.Trouble] = true
		}
	}
	for _, want := range settings().Faults {
		if !seen[want] {
			t.Errorf("%s does not occur in 4 minutes", want)
		}
	}
}

// TestPlanKeepsLossesApart: no node has a fault while the others have yet to notice that Redis has
// lost writes, and never all of the nodes at once.
func TestPlanKeepsLossesApart(t *testing.T) {
	for seed := range uint64(50) {
		for _, r := range Plan(seed, settings()) {
			if len(r.Faults) > 1 && (Loses(r.Faults[0].Trouble) || Loses(r.Faults[1].Trouble)) {
				t.Errorf("seed %d: %s", seed, r)
			}
			if len(r.Faults) > 1 && r.Faults[0].Node == r.Faults[1].Node {
				t.Errorf("seed %d: twice the same node: %s", seed, r)
			}
		}
	}
}
