package campaign

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func planSettings() settings {
	s := settings{nodes: 5, duration: 4 * time.Minute, failoverAfter: 2 * time.Second}
	for i := range faults {
		s.faults = append(s.faults, faults[i].name)
	}
	for i := range features {
		s.features = append(s.features, features[i].name)
	}
	return s
}

// TestPlanFollowsFromTheSeed: the same seed gives the same plan, also if other seeds run before it,
// and another seed another one.
func TestPlanFollowsFromTheSeed(t *testing.T) {
	one, same, other := planOf(7, planSettings()), planOf(7, planSettings()), planOf(8, planSettings())
	if fmt.Sprint(one) != fmt.Sprint(same) {
		t.Errorf("a seed gives two plans:\n%v\n%v", one, same)
	}
	if fmt.Sprint(one) == fmt.Sprint(other) {
		t.Error("two seeds give the same plan")
	}
	if c := newCover(1, planSettings()); fmt.Sprint(c.plan(1)) != fmt.Sprint(planOf(1, planSettings())) {
		t.Error("the first seed of a block has another plan alone")
	}
	if len(planOf(0, planSettings())) == 0 || len(planOf(^uint64(0), planSettings())) == 0 {
		t.Error("a seed has no plan")
	}
}

// TestPlanExcludesNoPair: the seeds of a block try each pair of faults, each fault alone, and each
// feature with each fault. Two faults at once never befall the same node.
func TestPlanExcludesNoPair(t *testing.T) {
	for _, first := range []uint64{1, 41} {
		s := planSettings()
		faultPairs, cells := map[[2]string]int{}, map[[2]string]int{}
		for seed := first; seed < first+block; seed++ {
			for _, r := range planOf(seed, s) {
				var pair [2]string
				for i, m := range r.faults {
					pair[i] = m.kind.name
					for _, feature := range r.features {
						cells[[2]string{feature, m.kind.name}]++
					}
				}
				faultPairs[pair]++
				faultPairs[[2]string{pair[1], pair[0]}]++
				if len(r.faults) > 1 && r.faults[0].node == r.faults[1].node && r.faults[0].node >= 0 {
					t.Errorf("seed %d: twice the same node: %s", seed, r)
				}
			}
		}
		for _, one := range s.faults {
			for _, other := range append(s.faults, "") {
				if faultPairs[[2]string{one, other}] == 0 {
					t.Errorf("seeds from %d on never try %s with %q", first, one, other)
				}
			}
			for _, feature := range s.features {
				if cells[[2]string{feature, one}] == 0 {
					t.Errorf("seeds from %d on never prefer %s with %s", first, feature, one)
				}
			}
		}
	}
}

// TestPlanLosesWhileTasksMove: where writes are lost while a node hands over, they are lost within
// 400 ms of its beginning; while a node is adopted, within 400 ms of the earliest moment for that.
func TestPlanLosesWhileTasksMove(t *testing.T) {
	s := planSettings()
	for seed := range uint64(40) {
		for _, r := range planOf(seed, s) {
			if len(r.faults) < 2 || !r.faults[0].kind.loses || !r.faults[1].kind.moves {
				continue
			}
			loss, move := r.faults[0], r.faults[1]
			moves := move.at
			if move.kind.adopted && move.length > s.failoverAfter {
				moves += s.failoverAfter
			}
			if gap := loss.at + loss.length - moves; gap < 0 || gap > 400*time.Millisecond {
				t.Errorf("seed %d: tasks begin to move at %s: %s", seed, moves, r)
			}
		}
	}
}

// TestDescribed: CONTRIBUTING.md and the tables themselves say what each fault and each feature is.
func TestDescribed(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	describe := func(name, does string) {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("CONTRIBUTING.md does not name %s", name)
		}
		if does == "" {
			t.Errorf("it is not said what %s does", name)
		}
	}
	for i := range faults {
		describe(faults[i].name, faults[i].does)
	}
	for i := range features {
		describe(features[i].name, features[i].does)
	}
}

// TestMatrix: a use counts during a fault and while that is noticed; so does a broken promise, for
// each feature that was used with its task, and for faults that met.
func TestMatrix(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	m := newMatrix()
	m.use("list", at(1), at(2), nil)
	m.use("cancel", at(12), at(13), []int{7})
	m.use("cancel", at(31), at(32), []int{8})
	m.use("schedule", at(14), at(15), []int{7})
	m.count([]occurrence{{"kill", at(10), at(20)}, {"flush", at(18), at(19)}, {"down", at(40), at(50)}}, 2*time.Second,
		[]breach{{"lost", m.featuresOf(7), at(14), at(21)}})
	all := newMatrix()
	all.add(m)
	for pair, want := range map[[2]string]cell{
		{"cancel", "kill"}: {1, 1}, {"schedule", "kill"}: {1, 1}, {"list", "kill"}: {}, {"cancel", "flush"}: {0, 1}, {"cancel", "down"}: {},
	} {
		if got := all.cells[pair]; got != want {
			t.Errorf("%v: want %+v, got %+v", pair, want, got)
		}
	}
	if got := all.pairs[[2]string{"flush", "kill"}]; got != (cell{1, 1}) {
		t.Errorf("flush and kill met: %+v", got)
	}
	if got := all.pairs[[2]string{"down", "kill"}]; got != (cell{}) {
		t.Errorf("down and kill met: %+v", got)
	}
	if empty := all.empty([]string{"cancel"}, []string{"kill", "down"}); len(empty) != 1 || empty[0] != "cancel with down" {
		t.Errorf("empty cells: %q", empty)
	}
}
