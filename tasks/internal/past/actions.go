package past

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// Bounds of acts whose calls make one entry.
const (
	// oneAct is how far apart the calls of one act may be.
	oneAct = 30 * time.Second
	// openActs is how many acts may have further calls to come.
	openActs = 16
)

// actions is what a process knows of the entries that it has recorded.
type actions struct {
	open   map[act]task.AuditEntry // of which further calls may come
	number int                     // of the entry, in this process
	hour   time.Time               // that is under way
	ofHour [2]int                  // entries that were kept of it: of acts on one task, and others
}

// act is what the calls of one act have in common.
type act struct {
	verb, by, topic, group, task, target, detail string
}

// Record keeps an entry. Calls of one act that is not over make one entry: its count is their sum.
// It waits for nothing. It reports false if the entry is not kept, because MaxAuditsAnHour are, or
// it is larger than a row.
func (p *Past) Record(e task.AuditEntry) bool {
	e = e.Bounded()
	e.Node = p.Node
	now := p.Clock().UTC()
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &p.actions
	id := act{e.Verb, e.By, e.Topic, e.Group, e.Task, e.Target, e.Detail}
	last, joins := a.open[id]
	if joins = joins && now.Sub(last.At).Abs() < oneAct; joins {
		e.ID, e.At, e.Count, e.Unknown = last.ID, last.At, e.Count+last.Count, e.Unknown || last.Unknown
	} else if !a.enter(&e, now) {
		return false
	} else {
		e.ID += "-" + p.name[strings.LastIndexByte(p.name, ' ')+1:]
	}
	value, err := json.Marshal(e)
	if err != nil || len(value) > recovery.MaxRowBytes {
		return false
	}
	delete(a.open, id)
	if e.Partial {
		a.keepOpen(id, e)
	}
	row := recovery.Row{At: e.At, Name: e.ID, Value: value}
	p.waitLocked(recovery.ActionRows, row)
	return true
}

// enter gives a new entry its time and the beginning of its id. It reports false if the hour has as
// many as it may.
func (a *actions) enter(e *task.AuditEntry, now time.Time) bool {
	if hour := now.Truncate(time.Hour); !a.hour.Equal(hour) {
		a.hour, a.ofHour = hour, [2]int{}
	}
	kind, most := 1, task.MaxAuditsAnHour
	if e.Task != "" {
		kind, most = 0, task.MaxAuditsAnHour/2
	}
	if a.ofHour[kind] >= most {
		return false
	}
	a.number++
	a.ofHour[kind]++
	// Digits of base 36 alone, so that it may stand in a path.
	e.At = now.Truncate(time.Millisecond)
	e.ID = strconv.FormatInt(now.UnixMilli(), 36) + "-" + strconv.Itoa(a.number)
	return true
}

// keepOpen notes an act of which further calls may come, in place of the oldest one if need be.
func (a *actions) keepOpen(id act, e task.AuditEntry) {
	if a.open == nil {
		a.open = make(map[act]task.AuditEntry, openActs)
	}
	if len(a.open) >= openActs {
		oldest := e
		var of act
		for other, o := range a.open {
			if !o.At.After(oldest.At) {
				oldest, of = o, other
			}
		}
		delete(a.open, of)
	}
	e.Before = ""
	a.open[id] = e
}

// about reports whether an entry is about a topic, or one of a pattern. The acts on many tasks have
// patterns, too.
func about(e *task.AuditEntry, topic string) bool {
	return topic == "" || e.Topic != "" && (task.Matches(topic, e.Topic) || task.Matches(e.Topic, topic))
}

// Entries returns a page of what was recorded, the latest first. Errors: those of recovery.Archive.
func (p *Past) Entries(ctx context.Context, q task.AuditQuery) (page task.AuditPage, err error) {
	var found []task.AuditEntry // the earliest first, one more than the page takes
	enter := func(r recovery.Row) bool {
		var e task.AuditEntry
		if json.Unmarshal(r.Value, &e) != nil || !about(&e, q.Topic) || q.Cursor != "" && !before(&e, q.Cursor) {
			return true
		}
		at, known := slices.BinarySearchFunc(found, e, func(a, b task.AuditEntry) int {
			return strings.Compare(position(&a), position(&b))
		})
		if known {
			found[at] = e
			return true
		}
		if found = slices.Insert(found, at, e); len(found) > q.Limit+1 {
			found = slices.Delete(found, 0, 1)
		}
		return true
	}
	if p.Archive != nil {
		err = p.Archive.Rows(ctx, recovery.ActionRows, "", q.From, q.To, enter)
	}
	p.waitingRows(recovery.ActionRows, q.From, q.To, enter)
	if len(found) > q.Limit {
		found = found[1:]
		page.Cursor = position(&found[0])
	}
	slices.Reverse(found)
	page.Entries = found
	return page, err
}

// position orders entries by time and id.
func position(e *task.AuditEntry) string {
	return e.At.UTC().Format("20060102T150405.000Z") + "-" + e.ID
}

func before(e *task.AuditEntry, cursor string) bool { return position(e) < cursor }

// waitingRows visits the rows of a series and a time that the ledger has not taken yet.
func (p *Past) waitingRows(s recovery.Series, from, to time.Time, visit func(recovery.Row) bool) {
	p.mu.Lock()
	waiting := slices.Clone(p.waiting)
	p.mu.Unlock()
	for i := range waiting {
		if w := &waiting[i]; w.series == s && w.row.Within(from, to) {
			visit(w.row)
		}
	}
}
