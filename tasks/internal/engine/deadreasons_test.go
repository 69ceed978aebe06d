package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// reasonsOf is the model of DeadReasons, in any order.
func reasonsOf(dead []Task) (all []DeadReason) {
	var tally task.DeadTally
	for i := range dead {
		t := &dead[i]
		tally.AddReason(DeadReason{Topic: t.Topic, Reason: t.Reason, Error: task.LikeError(t.LastError), Count: 1, FirstDied: t.Died, LastDied: t.Died})
	}
	return tally.Reasons
}

// byKey compares reasons in any order, without their examples.
var byKey = []cmp.Option{
	cmpopts.IgnoreFields(DeadReason{}, "Example"), cmpopts.EquateEmpty(),
	cmpopts.SortSlices(func(a, b DeadReason) bool {
		return fmt.Sprint(a.Topic, a.Reason, "|", a.Error) < fmt.Sprint(b.Topic, b.Reason, "|", b.Error)
	}),
}

// reasonsMatchModel makes dead tasks and compares what random queries tell of them with the lists.
func reasonsMatchModel(t *testing.T, nodes []*Scheduler) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	topics := []string{"x", "y", "z"}
	for i := range 60 {
		s := pick(rng, nodes...)
		topic := pick(rng, topics...)
		_, err := s.Schedule(t.Context(), Request{ID: fmt.Sprint("t", i), Topic: topic, Group: pick(rng, "", "g")})
		rig.Want(t, "Schedule", err, nil)
		rig.Pass(10 * time.Millisecond)
		ds, err := s.Reserve(t.Context(), topic, 1, 0, 0)
		if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
			t.Fatalf("reserved %d", len(ds))
		}
		why := pick(rng, fmt.Sprintf("order %d is gone", i), fmt.Sprintf("HTTP %d", 500+i%2), "", "refused\nby peer")
		_, err = s.Settle(t.Context(), Verdict{Verb: Bury, Reason: why}, []string{ds[0].Receipt()})
		rig.Want(t, "Settle", err, nil)
		rig.Pass(time.Second)
	}
	for i := range 5 {
		_, err := nodes[i%len(nodes)].Schedule(t.Context(), Request{ID: fmt.Sprint("z", i), Topic: "z", Delay: time.Hour})
		rig.Want(t, "Schedule", err, nil)
	}
	_, err := nodes[0].Admin().KillTopic(t.Context(), "z", -1)
	rig.Want(t, "KillTopic", err, nil)
	for range 30 {
		rig.Pass(3 * time.Second) // no answer is used again
		q := Query{Topic: pick(rng, "", "x", "y", "none"), Group: pick(rng, "", "", "g"), Reason: pick(rng, "", "", Buried), Error: pick(rng, "", "", "GONE"), ErrorLike: pick(rng, "", "", "order 7 is gone", "(none)")}
		var dead []Task
		count := 0
		for _, topic := range topics {
			of := q
			of.State, of.Topic = Dead, topic
			if q.Topic != "" && q.Topic != topic {
				continue
			}
			some, _ := found(t, func() *Scheduler { return nodes[0] }, of)
			every, _ := found(t, func() *Scheduler { return nodes[0] }, Query{Topic: topic, State: Dead})
			dead, count = append(dead, some...), count+len(every)
		}
		got, reach, err := pick(rng, nodes...).Admin().FleetDeadReasons(t.Context(), q)
		rig.Want(t, "FleetDeadReasons", err, nil)
		if diff := cmp.Diff(reasonsOf(dead), got.Reasons, byKey...); diff != "" {
			t.Fatalf("%+v: %s", q, diff)
		}
		if !got.Complete || got.LookedAt != count || got.Dead != count || got.LeftOut != 0 || len(reach.Nodes) != len(nodes) {
			t.Errorf("%+v: %+v of %v, want %d", q, got, reach.Nodes, count)
		}
		if !slices.IsSortedFunc(got.Reasons, func(a, b DeadReason) int { return b.Count - a.Count }) {
			t.Errorf("%+v: in the order %+v", q, got.Reasons)
		}
		// All nodes together tell what each tells of its own, and each reason selects its tasks.
		var sum task.DeadTally
		for _, s := range nodes {
			own, err := s.Admin().DeadReasons(t.Context(), q)
			rig.Want(t, "DeadReasons", err, nil)
			sum.Add(&own)
		}
		if diff := cmp.Diff(sum.Reasons, got.Reasons, byKey...); diff != "" {
			t.Errorf("%+v: the sum of the nodes: %s", q, diff)
		}
		for _, r := range got.Reasons {
			of, _ := found(t, func() *Scheduler { return nodes[0] }, Query{Topic: r.Topic, State: Dead, Group: q.Group, Error: q.Error, Reason: r.Reason, ErrorLike: r.Error})
			if len(of) != r.Count || task.LikeError(r.Example) != r.Error {
				t.Errorf("%+v selects %d tasks", r, len(of))
			}
		}
	}
}

func TestDeadReasonsMatchModel(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) { reasonsMatchModel(t, []*Scheduler{r.Scheduler}) })
}

func TestDeadReasonsMatchModelAtAllNodes(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		var nodes []*Scheduler
		for _, n := range f.Nodes {
			nodes = append(nodes, n.Scheduler)
		}
		reasonsMatchModel(t, nodes)
	})
}

// A call looks at a bounded number of tasks. A topic with many leaves the others some, a window
// leaves out what it does not select, and a restart changes nothing.
func TestDeadReasonsLookAtBoundedTasks(t *testing.T) {
	t.Parallel()
	const number = query.LooksAtOnce + 5000
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		batch := make([]Request, 0, MaxBatch)
		for i := range number {
			batch = append(batch, Request{ID: fmt.Sprintf("t%05d", i), Topic: "x", Delay: time.Hour})
			if len(batch) == MaxBatch || i == number-1 {
				_, err := r.ScheduleBatch(t.Context(), batch)
				rig.Want(t, "ScheduleBatch", err, nil)
				batch = batch[:0]
			}
		}
		_, err := r.Admin().KillTopic(t.Context(), "x", -1)
		rig.Want(t, "KillTopic", err, nil)
		rig.Pass(time.Minute)
		before := time.Now()
		r.Bury("y", "a", "b")
		for _, c := range []struct {
			q                         Query
			looked, dead, ofX, others int
			complete                  bool
		}{
			{Query{Topic: "x"}, query.LooksAtOnce, number, query.LooksAtOnce, 0, false},
			{Query{}, query.LooksAtOnce, number + 2, query.LooksAtOnce - 2, 2, false},
			{Query{Topic: "y"}, 2, 2, 0, 2, true},
			{Query{DiedFrom: before}, 2, number + 2, 0, 2, true},
			{Query{Topic: "x", DiedFrom: before}, 0, number, 0, 0, true},
			{Query{Topic: "x", DiedTo: before.Add(-time.Hour)}, 0, number, 0, 0, true},
		} {
			for _, restart := range []bool{false, true} {
				if rig.Pass(3 * time.Second); restart && c.q.Topic == "" {
					r.Shut()
					r.Open()
				}
				got, err := r.Admin().DeadReasons(t.Context(), c.q)
				rig.Want(t, "DeadReasons", err, nil)
				ofX, others := 0, 0
				for _, one := range got.Reasons {
					if one.Topic == "x" {
						ofX += one.Count
					} else {
						others += one.Count
					}
				}
				if got.LookedAt != c.looked || got.Dead != c.dead || ofX != c.ofX || others != c.others || got.Complete != c.complete {
					t.Errorf("%+v: %+v, want %+v", c.q, got, c)
				}
			}
		}
	})
}

// A call reads a bounded number of bytes, and tells of a bounded number of reasons. Its answer is
// used for a second.
func TestDeadReasonsAreBounded(t *testing.T) {
	t.Parallel()
	const number, size = 80, 500 << 10
	rig.Bubble(t, Config{MaxPayload: 1 << 20}, func(t *testing.T, r *rig.Rig) {
		payload := []byte(`"` + strings.Repeat("p", size) + `"`)
		for i := range number {
			d := deliverOne(r, t, Request{ID: fmt.Sprintf("t%02d", i), Topic: "large", Payload: payload})
			r.SettleOne(Verdict{Verb: Bury, Reason: "too large"}, d)
			d = deliverOne(r, t, Request{ID: fmt.Sprintf("s%02d", i), Topic: "many"})
			r.SettleOne(Verdict{Verb: Bury, Reason: "failure " + strings.Repeat("f", i) + strings.Repeat("é", 700)}, d)
		}
		got, err := r.Admin().DeadReasons(t.Context(), Query{Topic: "large"})
		rig.Want(t, "DeadReasons", err, nil)
		if got.Complete || got.LookedAt < 30 || got.LookedAt > 35 || got.Reasons[0].Count != got.LookedAt {
			t.Errorf("large: %+v", got)
		}
		got, err = r.Admin().DeadReasons(t.Context(), Query{Topic: "many"})
		rig.Want(t, "DeadReasons", err, nil)
		if !got.Complete || len(got.Reasons) != MaxDeadReasons || got.LeftOut != number-MaxDeadReasons {
			t.Errorf("many: %d reasons, %d left out", len(got.Reasons), got.LeftOut)
		}
		for _, one := range got.Reasons {
			if len(one.Error) > task.MaxLike || len(one.Example) > MaxBriefError {
				t.Errorf("an error of %d bytes, an example of %d", len(one.Error), len(one.Example))
			}
		}
		rig.Want(t, "DeleteDead", func() error { _, err := r.Admin().DeleteDead(t.Context(), "many", nil); return err }(), nil)
		if again, err := r.Admin().DeadReasons(t.Context(), Query{Topic: "many"}); err != nil || again.LookedAt != number {
			t.Errorf("at once: %d, %v", again.LookedAt, err)
		}
		rig.Pass(2 * time.Second)
		if again, err := r.Admin().DeadReasons(t.Context(), Query{Topic: "many"}); err != nil || again.LookedAt != 0 || !again.Complete {
			t.Errorf("a second later: %d, %v", again.LookedAt, err)
		}
	})
}

// A grant bounds the topics, and what is wrong is refused.
func TestDeadReasonsUnderAGrant(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("own.a", "a")
		r.Bury("foreign", "b")
		ctx := WithGrant(t.Context(), &Grant{Topics: []string{"own.*"}})
		got, _, err := r.Admin().FleetDeadReasons(ctx, Query{})
		if rig.Want(t, "FleetDeadReasons", err, nil); len(got.Reasons) != 1 || got.Reasons[0].Topic != "own.a" || got.Dead != 1 || got.LookedAt != 1 {
			t.Errorf("under a grant %+v", got)
		}
		_, _, err = r.Admin().FleetDeadReasons(ctx, Query{Topic: "foreign"})
		rig.Want(t, "FleetDeadReasons", err, ErrNotGranted)
		for field, q := range map[string]Query{
			"state": {State: Ready}, "topic": {Topic: "!"}, "group": {Group: "!"}, "due_from": {DueFrom: time.Now()},
			"reason": {Reason: "x"}, "error_like": {ErrorLike: strings.Repeat("x", 2000)},
		} {
			_, err := r.Admin().DeadReasons(t.Context(), q)
			if e := (*InvalidError)(nil); !errors.As(err, &e) || e.Fields[0].Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err = r.Admin().FleetDeadReasons(canceled, Query{})
		rig.Want(t, "FleetDeadReasons", err, context.Canceled)
		r.Shut()
		rig.Pass(2 * time.Second)
		_, err = r.Admin().DeadReasons(t.Context(), Query{})
		rig.Want(t, "DeadReasons", err, ErrClosed)
	})
}
