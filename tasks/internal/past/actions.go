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

// oneAct is how far apart the calls of one act may be.
const oneAct = 30 * time.Second

// actions is what a process knows of the entries that it has recorded.
type actions struct {
	latest task.AuditEntry
	number int       // of the entry, in this process
	hour   time.Time // that is under way
	ofHour int       // entries that were kept of it
}

// Record keeps an entry. Calls of one act that is not over make one entry: its count is their sum.
// It waits for nothing. It reports false if the entry is not kept, because MaxAuditsAnHour are.
func (p *Past) Record(e task.AuditEntry) bool {
	e = e.Bounded()
	e.Node = p.Node
	now := p.Clock().UTC()
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &p.actions
	if last := &a.latest; last.Partial && last.Same(&e) && now.Sub(last.At).Abs() < oneAct {
		e.ID, e.At, e.Count = last.ID, last.At, e.Count+last.Count
	} else {
		if hour := now.Truncate(time.Hour); !a.hour.Equal(hour) {
			a.hour, a.ofHour = hour, 0
		}
		if a.ofHour >= task.MaxAuditsAnHour {
			return false
		}
		a.number++
		a.ofHour++
		// Digits of base 36 alone, so that it may stand in a path.
		e.At = now.Truncate(time.Millisecond)
		e.ID = strconv.FormatInt(now.UnixMilli(), 36) + "-" + strconv.Itoa(a.number) + "-" + p.name[strings.LastIndexByte(p.name, ' ')+1:]
	}
	a.latest = e
	value, err := json.Marshal(e)
	if err != nil {
		return false // it consists of texts and numbers
	}
	row := recovery.Row{At: e.At, Name: e.ID, Value: value}
	p.waitLocked(recovery.ActionRows, row)
	return true
}

// Entries returns a page of what was recorded, the latest first. Errors: those of recovery.Archive.
func (p *Past) Entries(ctx context.Context, q task.AuditQuery) (page task.AuditPage, err error) {
	var found []task.AuditEntry // the earliest first, one more than the page takes
	enter := func(r recovery.Row) bool {
		var e task.AuditEntry
		if json.Unmarshal(r.Value, &e) != nil || q.Topic != "" && q.Topic != e.Topic || q.Cursor != "" && !before(&e, q.Cursor) {
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
