package cluster

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/portable"
	"github.com/lapsehq/lapse/tasks/task"
)

// An export is read page by page. Its cursor has all that a node must know for the next page, so
// that any node can make it, also after a restart. docs/decisions/0014-export.md says why no task
// is missing.

// ExportMethod is called at all nodes for a page of a pass.
var ExportMethod = Method[wireExportQuery, exportReply]{Name: "export", here: (*Cluster).exportLocal,
	deadAlone: func(q *wireExportQuery) bool { return q.Pass == portable.Buried },
}

// exportLocal reads a part of the tasks of this node.
func (s *Cluster) exportLocal(ctx context.Context, asked wireExportQuery) (a exportReply, err error) {
	q := asked.decode()
	var part portable.Part
	st, err := s.Covers(ctx, &a.Coverage, func(ctx context.Context) (err error) {
		part, err = portable.Read(ctx, s.engine, &q)
		return err
	})
	for _, item := range part.Items {
		if _, ok := st[item.Shard]; ok {
			a.Items = append(a.Items, wireExported{wireExportedAt(item.Position), item.Record, item.SeenAt})
		}
	}
	a.Last, a.Unreadable = (*wireExportedAt)(part.Last), part.Unreadable
	return a, err
}

// exportAll reads a part of the tasks of all nodes. It ends where the first of them has ended
// before the end of its tasks.
func (s *Cluster) exportAll(ctx context.Context, q portable.Query) (portable.Part, error) {
	if s.Fleet == nil {
		return portable.Read(ctx, s.engine, &q)
	}
	if q.Pass != 0 {
		q.Bytes = s.share(task.MaxPageBytes)
	}
	var all portable.Part
	err := everywhere(ctx, s, ExportMethod, encodeExportQuery(&q), func(a *exportReply, _ func(recovery.ShardID) bool) {
		for _, item := range a.Items {
			all.Items = append(all.Items, portable.Item{Position: portable.Position(item.At), Record: item.Record, SeenAt: item.SeenAt})
		}
		all.Unreadable += a.Unreadable
		last := (*portable.Position)(a.Last)
		if last != nil && (all.Last == nil || last.Compare(*all.Last) < 0) {
			all.Last = last
		}
	})
	if err != nil {
		return portable.Part{}, err
	}
	slices.SortFunc(all.Items, func(a, b portable.Item) int { return a.Compare(b.Position) })
	// A task appears twice if its shard moved, or if its node was called again.
	all.Items = slices.CompactFunc(all.Items, func(a, b portable.Item) bool { return a.Position == b.Position })
	if all.Last != nil {
		all.Items = slices.DeleteFunc(all.Items, func(i portable.Item) bool { return i.Compare(*all.Last) > 0 })
	}
	return all, nil
}

// An exportCursor is how far an export has come.
type exportCursor struct {
	Version int            `json:"v"`
	Stage   exportStage    `json:"s"`
	Round   int            `json:"r"`
	From    wireExportedAt `json:"p"`
	Topic   string         `json:"t,omitempty"` // the last one
	// Marks are the numbers of the nodes that held shards when the round began, and in the last
	// stage how far each was read.
	Marks  map[string]requeuedMark `json:"m,omitempty"`
	Counts task.ExportCounts       `json:"c"`
	// Begun are the counts when the tasks began.
	Begun task.ExportCounts `json:"b"`
}

// An exportStage is a part of an export.
type exportStage uint8

// The stages. The last three make a round.
const (
	exportTopics exportStage = iota
	exportMemory
	exportBuried
	exportRequeued
	exportOver
)

const (
	exportVersion = 1
	// exportRounds bounds how often an export begins again because it is not known which tasks were
	// requeued.
	exportRounds = 10
	// MaxExportCursor bounds the text of a cursor. It has a number for each node.
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
	return c, err == nil && c.Version == exportVersion && c.Stage < exportOver && c.Round >= 0 && c.Round < exportRounds
}

// topicsAtOnce is how many topics a page of an export has at most: their settings may have 16 KiB
// each.
const topicsAtOnce = 200

// ExportPage returns a page of an export. Errors: as of tasks.Scheduler.Export.
func (s *Cluster) ExportPage(ctx context.Context, q task.ExportQuery) (page task.ExportPage, err error) {
	c, ok := decodeExportCursor(q.Cursor)
	if !ok {
		return page, task.Invalid("cursor", "must be the cursor of the page before")
	}
	ask := portable.Query{From: portable.Position(c.From), Topics: q.Topics, Grant: task.PatternsOf(ctx)}
	switch c.Stage {
	case exportTopics:
		err = s.exportSettings(ctx, &c, &ask, &page)
	case exportMemory:
		ask.Pass = portable.InMemory
		err = s.exportPart(ctx, &c, ask, &page)
	case exportBuried:
		ask.Pass = portable.Buried
		err = s.exportPart(ctx, &c, ask, &page)
	default:
		err = s.exportAgain(ctx, &c, ask, &page)
	}
	if err != nil {
		return task.ExportPage{}, err
	}
	if page.Counts = c.Counts; c.Stage != exportOver {
		page.Cursor = c.encode()
	}
	return page, nil
}

// exportSettings exports settings of topics, and then begins the first round.
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
	if c.Topic = last; last != "" {
		return nil
	}
	c.Begun = c.Counts
	return s.beginRound(ctx, c, page)
}

// exportPart exports a part of a pass.
func (s *Cluster) exportPart(ctx context.Context, c *exportCursor, q portable.Query, page *task.ExportPage) error {
	part, err := s.exportAll(ctx, q)
	if err != nil {
		return err
	}
	if err := c.add(page, &part); err != nil {
		return err
	}
	if part.Last != nil {
		c.From = wireExportedAt(*part.Last)
		return nil
	}
	c.Stage, c.From = c.Stage+1, wireExportedAt{}
	return nil
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

// Scan returns a page of a scan. Errors: as of tasks.Scheduler.Scan.
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
		page.Tasks[i].SeenAt = engine.FromMillis(items[i].SeenAt)
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
