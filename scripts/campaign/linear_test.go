package campaign

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A history of requests for one task, or one key, is linearizable if each request had its effect at
// some instant between its beginning and its answer. Of a request whose outcome is not known that
// instant may be any later one, or none. Both models follow docs/http.md:
//
//   - a creation that lands after its caller heard "unknown" is deleted again, unless the same
//     request has come once more;
//   - what is cancelled or acknowledged and not recorded comes back if the process ends.

// An object is a task or a key as its callers know it.
type object struct {
	there bool
	value string // of a key
	due   int64  // of a task, in milliseconds

	// The end of the TTL of a key lies between the two; zero: it has none.
	from, to int64

	loose     bool // its creation may be deleted again
	back      bool // it is not there, and may come back
	cancelled bool // it is not there, since it was cancelled
}

// A request is what was asked for, and what was answered.
type request struct {
	verb    string
	value   string
	due     int64         // asked for
	ttl     time.Duration // zero: none
	unknown bool          // the outcome
	open    bool          // it is done, and not recorded

	status     int    // of HTTP
	n          int64  // a number that was answered
	got        string // a text that was answered
	start, end time.Time
}

// forever is the end of a request that may have its effect later, or never.
const forever = math.MaxInt64 / 2

// objects are histories by name. Callers use a few at a time.
type objects struct {
	model porcupine.Model
	mu    sync.Mutex // guards what follows
	all   map[string][]porcupine.Operation
	loose map[string]int // requests without a known outcome
	now   []string       // that are in use
	next  int
	dues  map[string]time.Time // in the request that creates it
}

func newObjects(step func(o object, q request) (bool, object)) *objects {
	return &objects{
		model: porcupine.Model{
			Init: func() any { return object{} },
			Step: func(state, input, _ any) (bool, any) { return step(state.(object), input.(request)) },
			DescribeOperation: func(input, _ any) string {
				return input.(request).String()
			},
		},
		all: map[string][]porcupine.Operation{}, loose: map[string]int{}, dues: map[string]time.Time{},
	}
}

func (q request) String() string {
	what := fmt.Sprintf("%s %s-%s %s%s", q.verb, rig.Stamp(q.start), rig.Stamp(q.end), q.value, map[bool]string{true: "?"}[q.unknown])
	return fmt.Sprintf("%s due %d ttl %s -> %d %d %q", what, q.due, q.ttl, q.status, q.n, q.got)
}

// Bounds of a history, so that it can be checked.
const (
	objectsInUse = 4
	mostRequests = 60
	mostUnknown  = 4
)

// pick chooses one of those in use. New ones take the place of those with enough requests.
func (s *objects) pick(dice int, prefix string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = slices.DeleteFunc(s.now, func(name string) bool { return len(s.all[name]) >= mostRequests || s.loose[name] >= mostUnknown })
	for len(s.now) < objectsInUse {
		s.next++
		s.now = append(s.now, fmt.Sprintf("%s%d", prefix, s.next))
	}
	return s.now[dice%len(s.now)]
}

// deadline is that of all creations of an object: the one that was proposed first.
func (s *objects) deadline(name string, proposed time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dues[name].IsZero() {
		s.dues[name] = proposed
	}
	return s.dues[name]
}

// add records a request that may have had an effect.
func (s *objects) add(name string, q request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := porcupine.Operation{Input: q, Call: q.start.UnixNano(), Return: q.end.UnixNano()}
	if q.unknown {
		op.Return = forever
		s.loose[name]++
	}
	s.all[name] = append(s.all[name], op)
	if undo := undoes[q.verb]; undo != "" && (q.unknown || q.open) {
		s.all[name] = append(s.all[name], porcupine.Operation{Input: request{verb: undo, start: q.start, end: q.end}, Call: op.Call, Return: forever})
	}
}

// undoes are what may follow on a request whose outcome is not known, or is not recorded.
var undoes = map[string]string{
	"post": "take back", "set": "take back", "setnx": "take back",
	"cancel": "come back", "ack": "come back", "del": "come back", "getdel": "come back",
}

// undo is the effect of such an event, if it fits.
func (o object) undo(verb string) object {
	switch {
	case verb == "take back" && o.there && o.loose:
		return object{}
	case verb == "come back" && !o.there && o.back:
		o.there, o.back, o.cancelled = true, false, false
	}
	return o
}

// gone is what is left of an object that a request removes.
func (o object) gone(q request) object {
	if !o.there {
		return o
	}
	if q.unknown || q.open {
		o.there, o.back, o.cancelled = false, true, q.verb == "cancel"
		return o
	}
	return object{cancelled: q.verb == "cancel"}
}

// judge checks all histories.
func (s *objects) judge(f *fleet, feature string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	checked, undecided := 0, 0
	for name, ops := range s.all {
		checked++
		switch porcupine.CheckOperationsTimeout(s.model, ops, 10*time.Second) {
		case porcupine.Unknown:
			undecided++
		case porcupine.Illegal:
			span := crash.Span{Start: time.Unix(0, ops[0].Call)}
			var lines []string
			for _, op := range ops {
				q := op.Input.(request)
				lines = append(lines, q.String())
				if q.end.After(span.End) {
					span.End = q.end
				}
			}
			f.broke(feature, span, "the history of %s has no order:\n    %s", name, strings.Join(lines, "\n    "))
		}
	}
	f.note("%s: %d histories were checked, %d of them took too long", feature, checked, undecided)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checked += checked
	f.undecided += undecided
}

// stepOfTask is the model of a task.
func stepOfTask(o object, q request) (bool, object) {
	switch q.verb {
	case "post":
		switch {
		case q.unknown && !o.there:
			return true, object{there: true, due: q.due, loose: true}
		case q.unknown:
			return true, o
		case q.status == 201:
			return !o.there, object{there: true, due: q.due}
		}
		ok := o.there && o.due == q.n
		o.loose = false
		return ok, o
	case "get":
		if q.status == 404 {
			return !o.there, o
		}
		return o.there && o.due == q.n, o
	case "move":
		if q.status == 404 {
			return !o.there, o
		}
		ok := o.there || q.unknown
		if o.there {
			o.due = q.due
		}
		return ok, o
	case "cancel":
		switch {
		case q.unknown:
			return true, o.gone(q)
		case q.status == 404:
			return !o.there, o
		}
		return o.there || o.cancelled, object{cancelled: true}
	case "ack":
		return o.there || q.unknown, o.gone(q)
	}
	return true, o.undo(q.verb)
}

// stepOfKey is the model of a key.
func stepOfKey(o object, q request) (bool, object) {
	set := func() object {
		to := object{there: true, value: q.value, loose: q.unknown && (!o.there || o.loose)}
		if q.ttl > 0 {
			to.from, to.to = q.start.Add(q.ttl).UnixMilli(), q.end.Add(q.ttl).UnixMilli()
			if q.unknown {
				to.to += time.Minute.Milliseconds()
			}
		}
		return to
	}
	switch q.verb {
	case "set":
		return true, set()
	case "setnx":
		if o.there {
			return q.unknown || q.n == 0, o
		}
		if !q.unknown && q.n == 0 {
			return false, o
		}
		return true, set()
	case "get":
		return o.there == (q.got != "") && (!o.there || o.value == q.got), o
	case "del":
		return q.unknown || o.there == (q.n == 1), o.gone(q)
	case "getdel":
		return q.unknown || o.there == (q.got != "") && (!o.there || o.value == q.got), o.gone(q)
	case "pexpire":
		ok := q.unknown || o.there == (q.n == 1)
		if o.there {
			o.from, o.to = q.start.Add(q.ttl).UnixMilli(), q.end.Add(q.ttl).UnixMilli()
			if q.unknown {
				o.to += time.Minute.Milliseconds()
			}
		}
		return ok, o
	case "persist":
		ok := q.unknown || (o.there && o.to != 0) == (q.n == 1)
		o.from, o.to = 0, 0
		return ok, o
	case "pttl":
		const slack = 5 // milliseconds
		switch {
		case q.n == -2:
			return !o.there, o
		case q.n == -1:
			return o.there && o.to == 0, o
		}
		return o.there && o.to != 0 && q.start.UnixMilli()+q.n-slack <= o.to && q.end.UnixMilli()+q.n+slack >= o.from, o
	}
	return true, o.undo(q.verb)
}
