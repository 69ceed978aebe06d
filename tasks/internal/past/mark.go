package past

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// MaxMarks bounds the marks of an answer. The latest remain.
const MaxMarks = 500

// sameMark is how far apart two nodes may notice the same.
const sameMark = time.Minute

// Mark keeps a mark.
func (p *Past) Mark(m task.Mark) {
	value, err := json.Marshal(m)
	if err != nil {
		return // it consists of texts and times
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waitLocked(recovery.MarkRows, recovery.Row{At: m.At, Name: string(m.Kind) + " " + m.Node + " " + p.name, Value: value})
}

// Marks returns the marks of a time, the earliest first: of nodes and the ledger, and of what was
// done with topics, or with one. What several nodes have noticed is one. Errors: those of
// recovery.Archive.
func (p *Past) Marks(ctx context.Context, from, to time.Time, topic string) (marks []task.Mark, err error) {
	enter := func(r recovery.Row) bool {
		var m task.Mark
		if json.Unmarshal(r.Value, &m) != nil {
			return true
		}
		known := slices.ContainsFunc(marks, func(o task.Mark) bool {
			if m.Kind == task.MarkStarted { // it may be kept and wait at the same time
				return o.Kind == m.Kind && o.Node == m.Node && o.At.Equal(m.At)
			}
			return o.Kind == m.Kind && o.Node == m.Node && m.At.Sub(o.At).Abs() < sameMark
		})
		if !known {
			marks = append(marks, m)
		}
		if len(marks) > MaxMarks {
			marks = slices.Delete(marks, 0, 1)
		}
		return true
	}
	if p.Archive != nil {
		err = p.Archive.Rows(ctx, recovery.MarkRows, "", from, to, enter)
	}
	if err != nil && !errors.Is(err, recovery.ErrArchiveFull) {
		return marks, err
	}
	full := err
	p.waitingRows(recovery.MarkRows, from, to, enter)
	page, err := p.Entries(ctx, task.AuditQuery{From: from, To: to, Topic: topic, Limit: task.MaxAuditPage})
	for i := range slices.Backward(page.Entries) {
		e := &page.Entries[i]
		if kind := markedBy[e.Verb]; kind != "" {
			text := ""
			if kind == task.MarkSettings {
				text = changedSettings(e)
			}
			marks = append(marks, task.Mark{At: e.At, Kind: kind, Node: e.Node, Topic: e.Topic, By: e.By, Text: text})
		}
	}
	slices.SortStableFunc(marks, func(a, b task.Mark) int { return a.At.Compare(b.At) })
	return marks[max(0, len(marks)-MaxMarks):], cmp.Or(err, full)
}

// markedBy has the acts on topics that are marks as well.
var markedBy = map[string]task.MarkKind{
	"pause": task.MarkPaused, "resume": task.MarkResumed,
	"set-topic": task.MarkSettings, "change-topic": task.MarkSettings, "delete-topic": task.MarkSettings,
}

// nodeOf returns the node of a row's name.
func nodeOf(name string) string {
	if at := strings.LastIndexByte(name, ' '); at >= 0 {
		return name[:at]
	}
	return name
}

// changedSettings names the settings that an act has changed, "" if that is not known.
func changedSettings(e *task.AuditEntry) string {
	var before, after map[string]json.RawMessage
	if json.Unmarshal([]byte(e.Detail), &after) != nil || json.Unmarshal([]byte(e.Before), &before) != nil {
		return "" // a text was cut, or there were none
	}
	delete(after, "revision")
	maps.DeleteFunc(after, func(name string, value json.RawMessage) bool { return bytes.Equal(value, before[name]) })
	return strings.Join(slices.Sorted(maps.Keys(after)), ", ")
}
