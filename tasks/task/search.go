package task

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bounds of a search.
const (
	// MaxSearchFound bounds how many tasks and groups one part of a search has; and topics.
	MaxSearchFound = 1000
	// SearchFound is how many they are unless the caller says otherwise.
	SearchFound = 100
	// SearchWithin is how long one part takes at most, unless the caller says otherwise, from
	// MinWithin to MaxWithin.
	SearchWithin = time.Second
)

// A SearchQuery asks for a part of a search.
type SearchQuery struct {
	// Text is what names must have in them, in capital or small letters: 1 to 128 characters that
	// names have.
	Text   string
	Cursor string        // Found.Cursor of the part before; empty: from the beginning
	Limit  int           // about how much is found at most, 1 to MaxSearchFound; 0: SearchFound
	Within time.Duration // for how long each node looks; 0: SearchWithin
}

// Checked returns the query with its defaults. Errors: ErrInvalid.
func (q SearchQuery) Checked() (SearchQuery, error) {
	var f Faults
	switch {
	case q.Text == "":
		f.Add("q", "must not be empty")
	case len(q.Text) > MaxIDBytes:
		f.Add("q", fmt.Sprintf("must be at most %d bytes", MaxIDBytes))
	case !ValidName("a" + q.Text[1:]), !ValidName("a" + q.Text[:1]):
		f.Add("q", "must be characters that ids, groups and topics have: A-Z a-z 0-9 . _ : @ -")
	}
	q.Limit, q.Within = cmp.Or(q.Limit, SearchFound), cmp.Or(q.Within, SearchWithin)
	if q.Limit < 1 || q.Limit > MaxSearchFound {
		f.Add("limit", fmt.Sprintf("must be from 1 to %d", MaxSearchFound))
	}
	f.CheckWithin(q.Within)
	return q, f.Err()
}

// CheckWithin adds a fault if the time that a caller gives to nodes is out of range.
func (f *Faults) CheckWithin(within time.Duration) {
	if within < MinWithin || within > MaxWithin {
		f.Add("within", fmt.Sprintf("must be from %v to %v", MinWithin, MaxWithin))
	}
}

// A Match says how a name has a text in it. The zero value is of one that has not.
type Match uint8

// How names match, the best first.
const (
	MatchExact Match = iota + 1 // it is the text
	MatchBegin                  // it begins with the text, whose letters may be capital or small
	MatchPart                   // it has the text in it
)

// String is the name of a match in the API.
func (m Match) String() string { return [...]string{"", "exact", "begin", "part"}[min(m, MatchPart)] }

// MatchOf returns how a name has a text in it.
func MatchOf[S string | []byte](text string, name S) Match {
	for i := 0; i+len(text) <= len(name); i++ {
		same, exact := 0, true
		for ; same < len(text); same++ {
			a, b := name[i+same], text[same]
			if a != b && small(a) != small(b) {
				break
			}
			exact = exact && a == b
		}
		switch {
		case same < len(text):
		case i > 0:
			return MatchPart
		case exact && len(text) == len(name):
			return MatchExact
		default:
			return MatchBegin
		}
	}
	return 0
}

// small returns the small letter of a capital one, and everything else as it is.
func small(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// Found is a part of a search. The parts of a search together have all that was there, and had its
// name, from the beginning of the first part to the end of the last one, if Complete says so.
type Found struct {
	Tasks  []FoundTask // those that match best first, then by id; none has its payload
	Groups []FoundName // of tasks; a group may be in several parts
	Topics []FoundName // in the first part only

	Cursor   string // leads to the next part; empty: the search has ended
	LookedAt int    // at how many tasks the search has looked, about
	Of       int    // of how many, about; those of nodes that are missing are not among them
	Complete bool   // no node was missing so far, in none of the parts
}

// A FoundTask is a task whose id has the text in it.
type FoundTask struct {
	Match Match
	Task  Task
}

// A FoundName is a group or a topic whose name has the text in it.
type FoundName struct {
	Match Match
	Name  string
	Topic string // of a group: that of one of its tasks
}

// AddTask adds a task for what the text matches: its id, its group, or both.
func (f *Found) AddTask(text string, t *Task) {
	if m := MatchOf(text, t.ID); m != 0 && !slices.ContainsFunc(f.Tasks, func(o FoundTask) bool { return o.Task.ID == t.ID }) {
		f.Tasks = append(f.Tasks, FoundTask{m, *t})
	}
	if m := MatchOf(text, t.Group); m != 0 && !slices.ContainsFunc(f.Groups, func(o FoundName) bool { return o.Name == t.Group }) {
		f.Groups = append(f.Groups, FoundName{m, t.Group, t.Topic})
	}
}

// Sort puts what was found in order.
func (f *Found) Sort() {
	slices.SortFunc(f.Tasks, func(a, b FoundTask) int {
		return cmp.Or(cmp.Compare(a.Match, b.Match), strings.Compare(a.Task.ID, b.Task.ID))
	})
	for _, names := range [][]FoundName{f.Groups, f.Topics} {
		slices.SortFunc(names, func(a, b FoundName) int {
			return cmp.Or(cmp.Compare(a.Match, b.Match), strings.Compare(a.Name, b.Name))
		})
	}
}
