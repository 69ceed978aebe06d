package cluster

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/portable"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// An export is read page by page. Its cursor has all that a node must know for the next page, so
// that any node can make it, also after a restart. docs/internals/decisions/0014-export.md says why
// no task is missing.

// ExportMethod is called at all nodes for a page of a pass. No spool has tasks that are dead or
// have been.
var ExportMethod = Method[portable.Query, exportReply]{Name: "export", here: (*Cluster).exportLocal,
	deadAlone: func(q *portable.Query) bool { return q.Pass != portable.InMemory },
}

// An exportReply is the part of a node.
type exportReply struct {
	Coverage
	portable.Part
}

// exportLocal reads a part of the tasks of this node.
func (s *Cluster) exportLocal(ctx context.Context, q portable.Query) (a exportReply, err error) {
	var shards []int
	st, err := s.Covers(ctx, &a.Coverage, func(ctx context.Context) (err error) {
		a.Part, shards, err = portable.Read(ctx, s.engine, &q)
		return err
	})
	a.Items = inSnapshot(a.Items, shards, st)
	return a, err
}

// exportAll reads a part of the tasks of all nodes. It ends where the first of them has ended
// before the end of its tasks.
func (s *Cluster) exportAll(ctx context.Context, q portable.Query) (portable.Part, error) {
	if s.Fleet == nil {
		part, _, err := portable.Read(ctx, s.engine, &q)
		return part, err
	}
	q.Bytes = s.share(task.MaxPageBytes)
	all := portable.Part{Marks: store.Marks{}}
	err := everywhere(ctx, s, ExportMethod, q, func(a *exportReply, _ func(recovery.ShardID) bool) {
		all.Add(&a.Part)
		if len(a.Covered) > 0 { // else another node covers what it has held
			all.AddMarks(&a.Part)
		}
	})
	if err != nil {
		return portable.Part{}, err
	}
	all.Cut()
	return all, nil
}

// An exportCursor is how far an export has come.
type exportCursor struct {
	Version      int    `json:"v"`
	Topic        string `json:"t,omitempty"` // the last one; of the topics, which come first
	portable.Way        // pass 0: topics

	Round  int               `json:"r"` // how often the tasks have begun before
	Counts task.ExportCounts `json:"c"`
	// Begun are the counts when the tasks began.
	Begun task.ExportCounts `json:"b"`
}

const (
	exportVersion = 1
	// exportRounds bounds how often an export begins again because it is not known which tasks were
	// requeued.
	exportRounds = 10
	// MaxExportCursor bounds the text of a cursor. It has a mark for each node.
	MaxExportCursor = 64 << 10
)

func (c *exportCursor) encode() string {
	text, err := json.Marshal(c)
	if err != nil {
		return "" // it consists of texts and numbers
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func decodeExportCursor(text string) (c exportCursor, ok bool) {
	if text == "" {
		return exportCursor{Version: exportVersion}, true
	}
	if len(text) > MaxExportCursor || strings.ContainsAny(text, "\r\n") {
		return c, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	return c, err == nil && c.Version == exportVersion && c.Pass <= portable.Requeued && c.Round >= 0 && c.Round < exportRounds
}

// topicsAtOnce is how many topics a page of an export has at most: their settings may have 16 KiB
// each.
const topicsAtOnce = 200

// ExportPage returns a page of an export. Errors: as of tasks.Admin.Export.
func (s *Cluster) ExportPage(ctx context.Context, q task.ExportQuery) (page task.ExportPage, err error) {
	c, ok := decodeExportCursor(q.Cursor)
	if !ok {
		return page, task.Invalid("cursor", "must be the cursor of the page before")
	}
	ask := portable.Query{Pass: c.Pass, From: c.From, Since: c.Since, Topics: q.Topics, Grant: task.PatternsOf(ctx)}
	more := true
	if c.Pass == 0 {
		err = s.exportSettings(ctx, &c, &ask, &page)
	} else {
		more, err = s.exportTasks(ctx, &c, ask, &page)
	}
	if err != nil {
		return task.ExportPage{}, err
	}
	if page.Counts = c.Counts; more {
		page.Cursor = c.encode()
	}
	return page, nil
}

// exportSettings exports settings of topics. Behind the last one the tasks begin.
func (s *Cluster) exportSettings(ctx context.Context, c *exportCursor, q *portable.Query, page *task.ExportPage) error {
	if err := s.engine.AwaitRead(ctx); err != nil {
		return err
	}
	all, last, unreadable, err := s.engine.StoredTopics(c.Topic, topicsAtOnce, func(topic string) bool {
		return task.AnyMatches(q.Topics, topic) && task.AnyMatches(q.Grant, topic)
	})
	if err != nil {
		return err
	}
	page.Topics = all
	c.Counts.Topics += len(all)
	c.Counts.Unreadable += unreadable
	if c.Topic = last; last == "" {
		c.Begun = c.Counts
		c.begin(page)
	}
	return nil
}

// begin begins the tasks behind a page. What was exported of them before counts no more.
func (c *exportCursor) begin(page *task.ExportPage) {
	c.Way, c.Counts = portable.Way{Pass: portable.InMemory}, c.Begun
	page.Begins = true
}

// exportTasks exports a part of a pass, and reports whether there are more. The tasks begin again
// if it is not known which were requeued.
func (s *Cluster) exportTasks(ctx context.Context, c *exportCursor, q portable.Query, page *task.ExportPage) (more bool, err error) {
	part, err := s.exportAll(ctx, q)
	if err != nil {
		return false, err
	}
	if part.Forgotten {
		if c.Round++; c.Round == exportRounds {
			return false, fmt.Errorf("%w: the export has begun %d times; each time shards changed hands, or too many dead tasks were requeued", task.ErrUnavailable, exportRounds)
		}
		c.begin(page)
		return true, nil
	}
	return c.Advance(&part), c.add(page, &part)
}

// add adds the tasks of a part to a page.
func (c *exportCursor) add(page *task.ExportPage, part *portable.Part) error {
	page.Tasks = make([]task.Exported, len(part.Items))
	c.Counts.Unreadable += part.Unreadable
	for i := range part.Items {
		x, err := portable.Exported(part.Items[i].ID, part.Items[i].Record)
		if err != nil {
			return fmt.Errorf("%w: the record of a task: %w", task.ErrUnavailable, err)
		}
		page.Tasks[i] = x
		switch x.State {
		case task.Dead:
			c.Counts.Dead++
		case task.Finished:
			c.Counts.Finished++
		default:
			c.Counts.Pending++
		}
	}
	return nil
}

// A scan reads the first pass of an export, without its state: the cursor is a cell of the hashes
// of ids, and pages end where a cell ends.

// cellShift is how many bits of a place tell tasks of one cell apart. Cells are so small that two
// tasks share one by chance only, and their numbers are whole numbers in every language.
const cellShift = 16

// lastCell is the last cell there is.
const lastCell = 1<<(64-cellShift) - 1

// Scan returns a page of a scan. Errors: as of tasks.Admin.Scan.
func (s *Cluster) Scan(ctx context.Context, q task.ScanQuery) (page task.ScanPage, err error) {
	if q.Cursor > lastCell {
		return page, nil
	}
	ask := portable.Query{
		Pass: portable.InMemory, From: portable.BeforeCell(q.Cursor, cellShift), Topics: q.Topics,
		Grant: task.PatternsOf(ctx), Items: q.Limit + 1, Brief: true,
	}
	var items []portable.Item
	for {
		part, err := s.exportAll(ctx, ask)
		if err != nil {
			return page, err
		}
		items = append(items, part.Items...)
		if part.Last == nil {
			break
		}
		cell := part.Last.Place >> cellShift
		if part.Last.EndsCell(cellShift) {
			page.Cursor = cell + 1
			break
		}
		if cell > q.Cursor { // this cell is for the next page
			page.Cursor = cell
			items = slices.DeleteFunc(items, func(i portable.Item) bool { return i.Place>>cellShift >= cell })
			break
		}
		ask.From = *part.Last // one cell has more tasks than the page
	}
	if page.Cursor > lastCell {
		page.Cursor = 0
	}
	if end := endOfPage(items, q.Limit); end < len(items) {
		page.Cursor, items = items[end].Place>>cellShift, items[:end]
	}
	page.Tasks = make([]task.Exported, len(items))
	for i := range items {
		if page.Tasks[i], err = portable.Exported(items[i].ID, items[i].Record); err != nil {
			return task.ScanPage{}, fmt.Errorf("%w: the record of a task: %w", task.ErrUnavailable, err)
		}
		page.Tasks[i].SeenAt = record.FromMillis(items[i].SeenAt)
	}
	return page, nil
}

// endOfPage returns how many of the tasks make a page of a scan: all tasks of some cells, at most
// limit unless the first cell alone has more.
func endOfPage(items []portable.Item, limit int) int {
	if len(items) <= limit {
		return len(items)
	}
	cell := func(i int) uint64 { return items[i].Place >> cellShift }
	end := limit
	for end > 0 && cell(end-1) == cell(limit) {
		end--
	}
	for end == 0 || end < len(items) && cell(end) == cell(0) {
		end++
	}
	return end
}
