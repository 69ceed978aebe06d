package portable

import (
	"cmp"
	"math"
	"strings"

	"github.com/lapsehq/lapse/tasks/internal/store"
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
}

// An Item is the record of one task.
type Item struct {
	Position
	Record []byte `json:"Record"`
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
}
