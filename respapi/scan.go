package respapi

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/glob"
	"github.com/lapsehq/lapse/respapi/internal/keyid"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

const (
	// keysWithin is how long KEYS may take.
	keysWithin = 30 * time.Second
	// cursorCells is how many cursors there are: those of Scheduler.Scan.
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

// page returns the keys of a page of the scheduler's scan that match a pattern; nil: all.
func (x *call) page(cursor uint64, limit int, pattern []byte) (names []string, next uint64, err error) {
	p, err := x.scheduler().Scan(x.ctx, x.c.server.scanQuery(cursor, limit))
	for i := range p.Tasks {
		t := &p.Tasks[i].Task
		if !isLive(t) {
			continue
		}
		if name, ok := x.c.server.nameOf(t); ok && (pattern == nil || glob.Match(pattern, name)) {
			names = append(names, name)
		}
	}
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
	count, pattern, ofType := 10, []byte(nil), true
	for rest := x.args[2:]; len(rest) > 0; rest = rest[2:] {
		switch {
		case len(rest) == 1:
			x.out.Error(errSyntax)
			return
		case is(rest[0], "count"):
			n, ok := parseInt(rest[1])
			if !ok {
				x.out.Error(errNotInteger)
				return
			}
			if n < 1 {
				x.out.Error(errSyntax)
				return
			}
			count = int(min(n, task.MaxScan))
		case is(rest[0], "match"):
			if pattern = rest[1]; string(pattern) == "*" {
				pattern = nil
			}
		case is(rest[0], "type"):
			ofType = is(rest[1], "string")
		default:
			x.out.Error(errSyntax)
			return
		}
	}
	names, next, err := x.page(cursor, count, pattern)
	if err != nil {
		x.fail(err)
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

// parseCursor reads a cursor as Redis does, which takes any number of 64 bits,
// also one below 0.
func parseCursor(b []byte) (uint64, bool) {
	text, minus := strings.CutPrefix(string(b), "-")
	n, err := strconv.ParseUint(text, 10, 64)
	if minus {
		n = -n
	}
	return min(n, cursorCells), err == nil
}

// runKeys answers KEYS pattern, in no order. Its answer is bounded, and so is its time.
func runKeys(x *call) {
	pattern := x.args[1]
	var all []string
	size, until := 0, time.Now().Add(keysWithin)
	for cursor := uint64(0); ; {
		names, next, err := x.page(cursor, task.MaxScan, pattern)
		if err != nil {
			x.fail(err)
			return
		}
		for _, name := range names {
			size += len(name) + 32
		}
		if size > x.c.server.cfg.MaxCommand {
			x.out.Error("ERR the keys exceed resp_max_command together; use SCAN")
			return
		}
		all = append(all, names...)
		if cursor = next; cursor == 0 {
			break
		}
		if time.Now().After(until) {
			x.out.Error("ERR KEYS takes too long; use SCAN")
			return
		}
	}
	slices.Sort(all) // a key that was set anew meanwhile may have been found twice
	all = slices.Compact(all)
	x.out.Array(len(all))
	for _, name := range all {
		x.out.Text(name)
	}
}

// runRandomKey answers RANDOMKEY: a key behind a place that is chosen at random.
func runRandomKey(x *call) {
	from := rand.Uint64N(cursorCells)
	until := time.Now().Add(keysWithin)
	cursor, wrapped := from, false
	for time.Now().Before(until) {
		names, next, err := x.page(cursor, 10, nil)
		if err != nil {
			x.fail(err)
			return
		}
		if len(names) > 0 {
			x.out.Text(names[rand.IntN(len(names))])
			return
		}
		if wrapped && (next == 0 || next > from) {
			x.out.Null()
			return
		}
		if next == 0 {
			wrapped = true
		}
		cursor = next
	}
	x.out.Error("ERR RANDOMKEY takes too long")
}
