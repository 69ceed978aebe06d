package portable

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Position is a place in the order in which the tasks of a pass are exported: behind the task
// that it names. The zero Position is before all tasks.
type Position struct {
	Place uint64 `json:"Place,omitempty"` // InMemory: the hash of the id, see store.PlaceOf
	Label string `json:"Label,omitempty"` // Buried: of the ledger
	At    int64  `json:"At,omitempty"`    // Buried: the time of death, or of the end
	ID    string `json:"ID,omitempty"`
}

// Compare orders two positions of one pass.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Place, o.Place), strings.Compare(p.Label, o.Label), cmp.Compare(p.At, o.At), strings.Compare(p.ID, o.ID))
}

// behindIDs is behind every id: it is no character of one, and sorts after all that are.
const behindIDs = "~"

// endOf is the position behind all tasks of a list of the store's Order.
func endOf(list int) Position { return Position{Place: store.EndOf(list), ID: behindIDs} }

// firstList returns the first list of the store's Order that may have tasks behind p.
func (p Position) firstList() int {
	list := store.ListOf(p.Place)
	if p == endOf(list) {
		list++
	}
	return list
}

// endOfLabel is the position behind all tasks of a label of the ledger.
func endOfLabel(label string) Position {
	return Position{Label: label, At: math.MaxInt64, ID: behindIDs}
}

// BeforeCell is the position before all tasks of a cell. Places with the same beginning, but for so
// many bits at their end, are a cell.
func BeforeCell(cell uint64, bits int) Position {
	if cell == 0 {
		return Position{}
	}
	return Position{Place: cell<<bits - 1, ID: behindIDs}
}

// EndsCell reports whether a position is behind all tasks of its cell.
func (p Position) EndsCell(bits int) bool {
	return p.ID == behindIDs && p.Place&(1<<bits-1) == 1<<bits-1
}

// A Pass is a part of an export.
type Pass uint8

// The passes, in their order.
const (
	InMemory Pass = iota + 1 // tasks that are neither dead nor finished
	Buried                   // dead and finished ones
	Requeued                 // those that were requeued since the first page
)

// A Query asks for the tasks of a pass that come behind a position, and those of Requeued that come
// behind the mark of the node. It travels between nodes as it is, and so does a Part.
type Query struct {
	Pass   Pass        `json:"Pass,omitempty"`
	From   Position    `json:"From"`
	Since  store.Marks `json:"Since,omitempty"`
	Topics []string    `json:"Topics,omitempty"` // patterns; empty: all topics
	// Grant are the patterns of the topics that the caller may use; empty: all.
	Grant []string `json:"Grant,omitempty"`
	Bytes int      `json:"Bytes,omitempty"` // about how many are wanted
	Items int      `json:"Items,omitempty"` // how many tasks are wanted at most; 0: MostItems
	// Brief: the records of tasks in memory are wanted without payload, target and attempts.
	Brief bool `json:"Brief,omitempty"`
	// Text is what the ids or the groups of tasks must have in them: then those are wanted as brief
	// Tasks, of a group one in each part. See task.MatchOf.
	Text string `json:"Text,omitempty"`
}

// An Item is one task: its record, or with Query.Text the Task.
type Item struct {
	Position
	Record []byte     `json:"Record"`
	Task   *task.Task `json:"Task,omitempty"`
	// SeenAt is when it was read, by its node's clock, in Unix milliseconds.
	SeenAt int64 `json:"SeenAt,omitempty"`
}

// A Part is what one node has for a Query.
type Part struct {
	Items []Item `json:"Items,omitempty"`
	// Last is the position up to which the part is complete; nil: to the end.
	Last *Position `json:"Last,omitempty"`
	// Marks has the mark of the node: of InMemory the one before the part was read, of Requeued the
	// one up to which the part is complete.
	Marks store.Marks `json:"Marks,omitempty"`
	// Forgotten: it is not known which tasks were requeued since the mark.
	Forgotten bool `json:"Forgotten,omitempty"`
	// Unreadable counts dead or finished tasks in the part that this version cannot read.
	Unreadable int `json:"Unreadable,omitempty"`
	// With Query.Text: whether there is more in the log of requeued tasks; at how many dead or
	// finished tasks the node has looked; how many tasks it has in memory, and how many that are
	// dead or finished, of the topics that are asked for.
	Unread bool `json:"Unread,omitempty"`
	Looked int  `json:"Looked,omitempty"`
	Live   int  `json:"Live,omitempty"`
	Buried int  `json:"Buried,omitempty"`
}

// Add adds what another node has for the same Query, but for marks.
func (p *Part) Add(o *Part) {
	p.Items = append(p.Items, o.Items...)
	p.Unreadable += o.Unreadable
	if o.Last != nil && (p.Last == nil || o.Last.Compare(*p.Last) < 0) {
		p.Last = o.Last
	}
	p.Live += o.Live
	p.Buried += o.Buried
}

// AddMarks adds the marks of another node.
func (p *Part) AddMarks(o *Part) {
	p.Forgotten = p.Forgotten || o.Forgotten
	for run, number := range o.Marks { // another answer of the node is about other shards
		if first, twice := p.Marks[run]; !twice || number < first {
			p.Marks[run] = number
		}
	}
}

// Cut puts the items in order, each once, and drops those behind Last.
func (p *Part) Cut() {
	slices.SortFunc(p.Items, func(a, b Item) int { return a.Compare(b.Position) })
	// A task appears twice if its shard moved, or if its node was called again.
	p.Items = slices.CompactFunc(p.Items, func(a, b Item) bool { return a.Position == b.Position })
	if p.Last != nil {
		p.Items = slices.DeleteFunc(p.Items, func(i Item) bool { return i.Compare(*p.Last) > 0 })
	}
}

// A Way is how far a reading of all passes has come: it is part of a cursor.
type Way struct {
	Pass Pass     `json:"s"` // 0: it has not begun
	From Position `json:"p"`
	// Since are the marks of the nodes that held shards when the tasks began; in the last pass, how
	// far the log of each was read.
	Since store.Marks `json:"m,omitempty"`
}

// Advance moves behind a part. It reports false behind the last one.
func (w *Way) Advance(part *Part) (more bool) {
	if w.Pass == InMemory && w.From == (Position{}) {
		w.Since = part.Marks
	}
	switch {
	case part.Last != nil:
		w.From = *part.Last
		return true
	case w.Pass < Requeued:
		w.Pass, w.From = w.Pass+1, Position{}
		return true
	}
	for run, number := range part.Marks {
		more = more || number != w.Since[run]
		w.Since[run] = number
	}
	return more
}
