package past

import (
	"context"
	"encoding/json"
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

// Marks returns the marks of a time, the earliest first. What several nodes have noticed is one.
// Errors: those of recovery.Archive.
func (p *Past) Marks(ctx context.Context, from, to time.Time) (marks []task.Mark, err error) {
	if p.Archive == nil {
		return nil, nil
	}
	err = p.Archive.Rows(ctx, recovery.MarkRows, "", from, to, func(r recovery.Row) bool {
		var m task.Mark
		if json.Unmarshal(r.Value, &m) != nil {
			return true
		}
		known := slices.ContainsFunc(marks, func(o task.Mark) bool {
			return o.Kind == m.Kind && o.Node == m.Node && m.At.Sub(o.At) < sameMark && m.Kind != task.MarkStarted
		})
		if !known {
			marks = append(marks, m)
		}
		if len(marks) > MaxMarks {
			marks = slices.Delete(marks, 0, 1)
		}
		return true
	})
	slices.SortStableFunc(marks, func(a, b task.Mark) int { return a.At.Compare(b.At) })
	return marks, err
}

// nodeOf returns the node of a row's name.
func nodeOf(name string) string {
	if at := strings.LastIndexByte(name, ' '); at >= 0 {
		return name[:at]
	}
	return name
}
