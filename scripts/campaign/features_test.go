package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lapsehq/lapse/scripts/crash"
)

// A feature is what callers and receivers use.
type feature struct {
	name    string // selects it, and heads its row in the matrix
	does    string
	excuses string // what its documentation allows, beside what faults explain; empty: nothing
	acts    []act  // of callers; what receivers do with it is theirs

	topics map[string]string                 // settings of the topics that it needs
	begin  func(f *fleet)                    // before the callers
	left   func(f *fleet) string             // what is still owed at the end
	judge  func(f *fleet)                    // beside what [crash.Bench] judges; see fleet.broke
	pulled func(f *fleet, p *pulled) handled // what receivers do with tasks of its topics
}

// A handled says what becomes of a task that a receiver has got.
type handled struct {
	verb    string        // "": nothing, so that its lease runs out
	after   time.Duration // before it is settled
	outside bool          // the task is not one of the history: it has no number of its own
	once    bool          // it is settled by one request, whatever the answer
	settled func(s crash.Settlement)
}

// An act is what a caller does at a time. Shares say how often, beside all other acts.
type act struct {
	share int
	do    func(c *caller, ctx context.Context, r *run)
}

// features are all features. They are filled in by init, as acts refer to them.
var features []feature

func init() {
	features = []feature{
		{name: "schedule", does: "POST and PUT of tasks, batches, repeated creations, GET", acts: []act{
			{14, (*caller).create}, {6, (*caller).put}, {20, (*caller).batch}, {18, (*caller).look}, {5, (*caller).repeat},
		}},
		{name: "change", does: "PATCH, PUT and fire of tasks that exist", acts: []act{
			{8, (*caller).move}, {7, (*caller).replace}, {5, (*caller).fire},
		}},
		{name: "cancel", does: "DELETE of tasks and groups", acts: []act{
			{9, (*caller).cancel}, {4, (*caller).cancelGroup},
		}},
		{name: "list", does: "lists of a group", excuses: "a task that moves meanwhile may be left out", acts: []act{{4, (*caller).list}}},
		holdFeature, bulkFeature, keptFeature, onDeadFeature, groupFeature, coalesceFeature, targetFeature,
		exportFeature, importFeature, registerFeature, keysFeature, eventsFeature, streamsFeature,
		{name: "receive", does: "reserve, ack, repeated ack, release, extend, leases that run out"},
		{name: "dead", does: "bury, lists of the dead, requeue"},
	}
}

func featureOf(name string) *feature {
	for i := range features {
		if features[i].name == name {
			return &features[i]
		}
	}
	return nil
}

// prefer sets the features that callers prefer.
func (f *fleet) prefer(names []string) {
	var list []*feature
	for _, name := range names {
		if w := featureOf(name); w.acts != nil {
			list = append(list, w)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.preferred = list
}

// choose returns the next act of a caller: half of them are of the preferred features.
func (f *fleet) choose(rng *rand.Rand) (of *feature, do act) {
	f.mu.Lock()
	preferred := f.preferred
	f.mu.Unlock()
	if len(preferred) > 0 && rng.IntN(2) == 0 {
		of = preferred[rng.IntN(len(preferred))]
		return of, of.acts[rng.IntN(len(of.acts))]
	}
	dice := rng.IntN(f.shares)
	for _, w := range f.features {
		for _, a := range w.acts {
			if dice -= a.share; dice < 0 {
				return w, a
			}
		}
	}
	panic("the shares do not add up")
}

// each calls do for each feature that is used.
func (f *fleet) each(do func(w *feature)) {
	for _, w := range f.features {
		do(w)
	}
}

// broke records a promise that was broken by what happened in a span of time, unless no memory was
// left that could have kept it.
func (f *fleet) broke(feature string, s crash.Span, format string, args ...any) {
	text := fmt.Sprintf(feature+": "+format, args...)
	if why, ok := f.bench().Forgotten(f.history, s); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.excused = append(f.excused, text+"; "+why)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.breaches = append(f.breaches, breach{text, []string{feature}, s.Start, s.End})
}

// disturbed reports whether one of some faults happened between two instants, or was being noticed.
func (f *fleet) disturbed(from, to time.Time, which func(crash.Trouble) bool) bool {
	return slices.ContainsFunc(f.history.Faults(), func(x crash.Fault) bool {
		return which(x.Trouble) && x.Start.Before(to) && (x.End.IsZero() || x.End.Add(notice(f.failoverAfter)).After(from))
	})
}

// movesTasks reports whether shards may change hands by a fault.
func movesTasks(t crash.Trouble) bool {
	switch t {
	case crash.Killed, crash.Stopped, crash.CutOff, crash.HalfOpen, crash.Slow, crash.Drained, crash.HandedOver, crash.Restarted, crash.OtherSpool:
		return true
	}
	return false
}

// use notes that a feature was used from an instant until now, with some tasks, by their numbers.
func (f *fleet) use(name string, start time.Time, tasks ...int) {
	f.matrix.use(name, start, time.Now(), tasks)
}

func allFeatures() (names []string) {
	for i := range features {
		names = append(names, features[i].name)
	}
	return names
}
