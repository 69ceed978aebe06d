package cluster

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
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

// The calls of exports. ExportMethod is called at all nodes.
var (
	ExportMethod   = Method[wireExportQuery, exportReply]{Name: "export"}
	RequeuedMethod = Method[requeuedQuery, requeuedReply]{Name: "requeued"}
)

type (
	// A requeuedQuery asks for the ids of tasks that were requeued at a node, from a number on.
	// With Limit 0 it asks for the present number.
	requeuedQuery struct {
		Mark  requeuedMark
		Limit int
	}
	requeuedReply struct {
		IDs  []string
		Next requeuedMark
		// Forgotten: the node does not know (any more) what was requeued since.
		Forgotten bool `json:",omitempty"`
	}
	// A requeuedMark is a number of a process, see store.Requeued.
	requeuedMark struct{ Run, Number uint64 }
)

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
			a.Items = append(a.Items, wireExported{wireExportedAt(item.Position), item.Record})
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
	nodes, err := s.Fleet.ledger.Peers(ctx)
	if err != nil {
		return portable.Part{}, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	if q.Pass != 0 {
		q.Bytes = max(1, task.MaxPageBytes/max(1, len(nodes)))
	}
	var all portable.Part
	c := fanOut[wireExportQuery, exportReply, *exportReply]{Cluster: s, method: ExportMethod, query: encodeExportQuery(&q), here: (*Cluster).exportLocal, deadAlone: q.Pass == portable.Buried}
	c.take = func(a *exportReply, _ func(recovery.ShardID) bool) {
		for _, item := range a.Items {
			all.Items = append(all.Items, portable.Item{Position: portable.Position(item.At), Record: item.Record})
		}
		all.Unreadable += a.Unreadable
		last := (*portable.Position)(a.Last)
		if last != nil && (all.Last == nil || last.Compare(*all.Last) < 0) {
			all.Last = last
		}
	}
	if err := c.run(ctx); err != nil {
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

// handleRequeued answers which tasks were requeued here.
func (s *Cluster) handleRequeued(_ context.Context, _ string, q requeuedQuery) (a requeuedReply, err error) {
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	if s.engine.Ended {
		return a, task.ErrClosed
	}
	r := &s.engine.Dead.Requeued
	if q.Limit <= 0 {
		a.Next = requeuedMark{r.Run, r.Count}
		return a, nil
	}
	ids, known := r.Since(q.Mark.Number, min(q.Limit, portable.MostIDs))
	if !known || q.Mark.Run != 0 && q.Mark.Run != r.Run {
		a.Forgotten = true
		return a, nil
	}
	a.IDs, a.Next = ids, requeuedMark{r.Run, q.Mark.Number + uint64(len(ids))}
	return a, nil
}

// requeuedAt calls RequeuedMethod of a node, which may be this one.
func (s *Cluster) requeuedAt(ctx context.Context, node string, q requeuedQuery) (requeuedReply, error) {
	if s.Fleet == nil || node == s.Fleet.node {
		return s.handleRequeued(ctx, node, q)
	}
	return callHolder(ctx, s, node, RequeuedMethod, q)
}

// liveNodes are the names of the nodes that can be asked, in order. That of a node without a fleet
// is empty.
func (s *Cluster) liveNodes(ctx context.Context) (names []string, err error) {
	if s.Fleet == nil {
		return []string{""}, nil
	}
	nodes, err := s.Fleet.ledger.Peers(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	for _, n := range nodes {
		if n.Live || n.Self {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// An exportCursor is how far an export has come.
type exportCursor struct {
	Version int            `json:"v"`
	Stage   exportStage    `json:"s"`
	Round   int            `json:"r"`
	From    wireExportedAt `json:"p"`
	Topic   string         `json:"t,omitempty"` // the last one
	// Marks are the numbers of the nodes: when the round began, and in the last stage how far each
	// was read.
	Marks  map[string]requeuedMark `json:"m,omitempty"`
	Counts task.ExportCounts       `json:"c"`
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
	// exportRounds bounds how often an export begins again because a node has forgotten which tasks
	// were requeued.
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
	return c, err == nil && c.Version == exportVersion && c.Stage < exportOver && c.Round < exportRounds
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
	return s.beginRound(ctx, c)
}

// beginRound notes which tasks were requeued before.
func (s *Cluster) beginRound(ctx context.Context, c *exportCursor) error {
	nodes, err := s.liveNodes(ctx)
	if err != nil {
		return err
	}
	c.Marks = make(map[string]requeuedMark, len(nodes))
	for _, node := range nodes {
		a, err := s.requeuedAt(ctx, node, requeuedQuery{})
		if err != nil {
			return err
		}
		c.Marks[node] = a.Next
	}
	c.Stage, c.From = exportMemory, wireExportedAt{}
	return nil
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

// exportAgain exports tasks that were requeued since the round began. Another round begins if a
// node does not know them.
func (s *Cluster) exportAgain(ctx context.Context, c *exportCursor, q portable.Query, page *task.ExportPage) error {
	nodes, err := s.liveNodes(ctx)
	if err != nil {
		return err
	}
	known := true
	for node := range c.Marks {
		known = known && slices.Contains(nodes, node)
	}
	next := maps.Clone(c.Marks)
	var all portable.Part
	asked, bytes := 0, 0
	for _, node := range nodes {
		for known && asked < portable.MostIDs && bytes < task.MaxPageBytes {
			a, err := s.requeuedAt(ctx, node, requeuedQuery{next[node], s.requeuedAtOnce()})
			if err != nil {
				return err
			}
			if known = !a.Forgotten; len(a.IDs) == 0 {
				break
			}
			q.IDs = engine.Once(a.IDs)
			part, err := s.exportAll(ctx, q)
			if err != nil {
				return err
			}
			next[node], asked = a.Next, asked+len(a.IDs)
			all.Items, all.Unreadable = append(all.Items, part.Items...), all.Unreadable+part.Unreadable
			for _, item := range part.Items {
				bytes += len(item.Record)
			}
		}
	}
	switch {
	case !known && c.Round+1 == exportRounds:
		return fmt.Errorf("%w: the export has begun %d times; each time a node was restarted, or too many dead tasks were requeued", task.ErrUnavailable, exportRounds)
	case !known:
		c.Round++
		return s.beginRound(ctx, c)
	case asked == 0:
		c.Stage = exportOver
		return nil
	}
	c.Marks = next
	return c.add(page, &all)
}

// requeuedAtOnce is how many requeued tasks are read at once: so few that the largest payloads
// make half of a page.
func (s *Cluster) requeuedAtOnce() int {
	return min(max(task.MaxPageBytes/2/s.engine.Config.MaxPayload, 1), portable.MostIDs)
}
