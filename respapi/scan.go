package respapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/respapi/internal/glob"
	"github.com/lapsehq/lapse/respapi/internal/keyid"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// errTakesLong is what atLength answers when the time is over.
var errTakesLong = errors.New("the command takes too long; use SCAN, or a pattern with fewer asterisks")

const (
	// keysWithin is how long a command that looks at all keys may take, and one page of them.
	keysWithin = 30 * time.Second
	// unwatchedFor is how long it takes before it looks whether its client is still there.
	unwatchedFor = time.Second
	// matchesAtOnce is how many names are matched before the time and the client are looked at.
	matchesAtOnce = 64
	// cursorCells is how many cursors there are: those of Admin.Scan.
	cursorCells = 1 << 48
)

// nameOf returns the key of a task. It reports false for a task that is no key.
func (s *Server) nameOf(t *tasks.Task) (name string, ok bool) {
	name, ok = keyid.Decode(t.ID, t.Headers[keyid.Header])
	if !ok || len(name) > keyid.MaxKey {
		return "", false
	}
	topic, problem := s.keyTopic([]byte(name))
	return name, problem == "" && topic == t.Topic
}

// scanQuery returns the query for a page of keys.
func (s *Server) scanQuery(cursor uint64, limit int) tasks.ScanQuery {
	q := tasks.ScanQuery{Cursor: cursor, Limit: limit}
	if len(s.hasKeys) <= task.MaxExportTopics {
		for topic := range s.hasKeys {
			q.Topics = append(q.Topics, topic)
		}
	}
	return q
}

// pattern reads a pattern. It answers and reports false if it is too long.
func (x *call) pattern(text []byte) (p *glob.Pattern, ok bool) {
	p, err := glob.Compile(text)
	if err != nil {
		x.out.Error("ERR " + err.Error())
	}
	return p, err == nil
}

// matching returns those of the names that match a pattern; nil: all. Error: that of ctx, which may
// end meanwhile.
func matching(ctx context.Context, pattern *glob.Pattern, names []string) (found []string, err error) {
	if pattern == nil {
		return names, nil
	}
	for i, name := range names {
		if i%matchesAtOnce == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if pattern.Match(name) {
			found = append(found, name)
		}
	}
	return found, nil
}

// atLength calls f, which may take as long as keysWithin, and only while the client is there and
// has the rights with which it began. It answers an error of f. It reports false after an error.
func (x *call) atLength(f func(ctx context.Context) error) bool {
	var err error
	caller := x.c.caller
	x.whileThere(unwatchedFor, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, keysWithin)
		defer cancel()
		if err = f(ctx); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = errTakesLong
		}
	})
	if err != nil && caller.Withdrawn() {
		err = edge.ErrWithdrawn
	}
	if err != nil {
		x.fail(err)
	}
	return err == nil
}

// page returns the keys of a page of the scheduler's scan that match a pattern; nil: all. Errors:
// those of Admin.Scan, that of ctx.
func (x *call) page(ctx context.Context, cursor uint64, limit int, pattern *glob.Pattern) (names []string, next uint64, err error) {
	p, err := x.scheduler().Scan(ctx, x.c.server.scanQuery(cursor, limit))
	if err != nil {
		return nil, 0, err
	}
	for i := range p.Tasks {
		t := &p.Tasks[i].Task
		if !isLive(t) {
			continue
		}
		if name, ok := x.c.server.nameOf(t); ok {
			names = append(names, name)
		}
	}
	names, err = matching(ctx, pattern, names)
	return names, p.Cursor, err
}

// runScan answers SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]. A key that exists from the
// first call to the last is returned, at whatever nodes of a fleet the calls are made.
func runScan(x *call) {
	cursor, ok := parseCursor(x.args[1])
	if !ok {
		x.out.Error("ERR invalid cursor")
		return
	}
	count, ofType := 10, true
	var pattern *glob.Pattern
	for rest := x.args[2:]; len(rest) > 0; rest = rest[2:] {
		switch {
		case len(rest) == 1:
			x.out.Error(errSyntax)
			return
		case is(rest[0], "count"):
			n, ok := x.number(rest[1], errNotInteger)
			if !ok {
				return
			}
			if n < 1 {
				x.out.Error(errSyntax)
				return
			}
			count = int(min(n, task.MaxScan))
		case is(rest[0], "match"):
			if pattern, ok = x.pattern(rest[1]); !ok {
				return
			}
		case is(rest[0], "type"):
			ofType = is(rest[1], "string")
		default:
			x.out.Error(errSyntax)
			return
		}
	}
	var names []string
	var next uint64
	if !x.atLength(func(ctx context.Context) (err error) {
		names, next, err = x.page(ctx, cursor, count, pattern)
		return err
	}) {
		return
	}
	if !ofType {
		names = nil
	}
	x.out.Array(2)
	x.out.Text(strconv.FormatUint(next, 10))
	x.out.Array(len(names))
	for _, name := range names {
		x.out.Text(name)
	}
}

// parseCursor reads a cursor as Redis does, which takes any number of 64 bits, also one below 0,
// and no text for 0.
func parseCursor(b []byte) (uint64, bool) {
	if len(b) == 0 {
		return 0, true
	}
	text, minus := strings.CutPrefix(string(b), "-")
	n, err := strconv.ParseUint(text, 10, 64)
	if minus {
		n = -n
	}
	return min(n, cursorCells), err == nil
}

// runKeys answers KEYS pattern, in no order. Its answer is bounded, and so is its time.
func runKeys(x *call) {
	pattern, ok := x.pattern(x.args[1])
	if !ok {
		return
	}
	var all []string
	if !x.atLength(func(ctx context.Context) error {
		size := 0
		for cursor := uint64(0); ; {
			names, next, err := x.page(ctx, cursor, task.MaxScan, pattern)
			if err != nil {
				return err
			}
			for _, name := range names {
				size += len(name) + 32
			}
			if size > x.c.server.cfg.MaxCommand {
				return errors.New("the keys exceed resp_max_command together; use SCAN")
			}
			all = append(all, names...)
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}) {
		return
	}
	slices.Sort(all) // a key that was set anew meanwhile may have been found twice
	all = slices.Compact(all)
	x.out.Array(len(all))
	for _, name := range all {
		x.out.Text(name)
		x.c.spill()
	}
}

// runRandomKey answers RANDOMKEY: a key behind a place that is chosen at random.
func runRandomKey(x *call) {
	found, name := false, ""
	if !x.atLength(func(ctx context.Context) error {
		from := rand.Uint64N(cursorCells)
		for cursor, wrapped := from, false; ; {
			names, next, err := x.page(ctx, cursor, 10, nil)
			switch {
			case err != nil:
				return err
			case len(names) > 0:
				found, name = true, names[rand.IntN(len(names))]
				return nil
			case wrapped && (next == 0 || next > from):
				return nil
			}
			wrapped = wrapped || next == 0
			cursor = next
		}
	}) {
		return
	}
	if found {
		x.out.Text(name)
	} else {
		x.out.Null()
	}
}
