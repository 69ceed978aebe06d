package campaign

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A matrix counts, for each feature and each fault, how often the feature was used during the
// fault, and how often a promise was broken about a task with which it was used.
type matrix struct {
	mu    sync.Mutex // guards what follows
	uses  map[string][]use
	tasks map[int][]string // the features that were used with a task, by its number
	cells map[[2]string]cell
	pairs map[[2]string]cell // of faults that met
}

type use struct{ start, end time.Time }

type cell struct{ tried, violated int }

func newMatrix() *matrix {
	return &matrix{uses: map[string][]use{}, tasks: map[int][]string{}, cells: map[[2]string]cell{}, pairs: map[[2]string]cell{}}
}

func (m *matrix) use(feature string, start, end time.Time, tasks []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uses[feature] = append(m.uses[feature], use{start, end})
	for _, n := range tasks {
		if !slices.Contains(m.tasks[n], feature) {
			m.tasks[n] = append(m.tasks[n], feature)
		}
	}
}

// featuresOf lists the features that were used with a task.
func (m *matrix) featuresOf(task int) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tasks[task]
}

// A breach is a broken promise as the matrix counts it.
type breach struct {
	text       string
	features   []string
	start, end time.Time
}

// count fills the cells, once all faults are over. What happens while nodes notice a fault belongs
// to it.
func (m *matrix) count(faults []occurrence, noticed time.Duration, broken []breach) {
	m.mu.Lock()
	defer m.mu.Unlock()
	add := func(cells map[[2]string]cell, one, other string, c cell) {
		all := cells[[2]string{one, other}]
		cells[[2]string{one, other}] = cell{all.tried + c.tried, all.violated + c.violated}
	}
	for i, f := range faults {
		until := f.end.Add(noticed)
		for feature, uses := range m.uses {
			n := 0
			for _, u := range uses {
				if u.start.Before(until) && u.end.After(f.start) {
					n++
				}
			}
			add(m.cells, feature, f.name, cell{tried: n})
		}
		for _, other := range faults[i+1:] {
			if other.start.Before(until) && f.start.Before(other.end.Add(noticed)) {
				pair := []string{f.name, other.name}
				slices.Sort(pair)
				add(m.pairs, pair[0], pair[1], cell{tried: 1})
			}
		}
	}
	for _, b := range broken {
		var met []string
		for _, f := range faults {
			if b.start.Before(f.end.Add(noticed)) && f.start.Before(b.end) && !slices.Contains(met, f.name) {
				met = append(met, f.name)
			}
		}
		slices.Sort(met)
		for i, one := range met {
			for _, feature := range b.features {
				add(m.cells, feature, one, cell{violated: 1})
			}
			for _, other := range met[i+1:] {
				add(m.pairs, one, other, cell{violated: 1})
			}
		}
	}
}

// add adds what another matrix has counted.
func (m *matrix) add(other *matrix) {
	other.mu.Lock()
	defer other.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for into, from := range map[*map[[2]string]cell]map[[2]string]cell{&m.cells: other.cells, &m.pairs: other.pairs} {
		for at, c := range from {
			all := (*into)[at]
			(*into)[at] = cell{all.tried + c.tried, all.violated + c.violated}
		}
	}
}

// table shows how often each feature was used during each fault, and behind an exclamation
// mark how often a promise was broken. A second table has the pairs of faults that met.
func (m *matrix) table(features, faults []string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	head := func(corner string, names []string) {
		fmt.Fprintf(&b, "\n%-12s", corner)
		for _, name := range names {
			fmt.Fprintf(&b, "%11s", name)
		}
	}
	head("", faults)
	for _, feature := range features {
		fmt.Fprintf(&b, "\n%-12s", feature)
		for _, f := range faults {
			fmt.Fprintf(&b, "%11s", m.cells[[2]string{feature, f}])
		}
	}
	b.WriteString("\n")
	head("faults met", faults)
	for i, one := range faults {
		fmt.Fprintf(&b, "\n%-12s", one)
		for k, other := range faults {
			text := ""
			if k >= i {
				pair := []string{one, other}
				slices.Sort(pair)
				text = m.pairs[[2]string{pair[0], pair[1]}].String()
			}
			fmt.Fprintf(&b, "%11s", text)
		}
	}
	return b.String()
}

func (c cell) String() string {
	if c.violated > 0 {
		return fmt.Sprintf("%d!%d", c.tried, c.violated)
	}
	return fmt.Sprint(c.tried)
}

// empty lists the cells that were not tried.
func (m *matrix) empty(features, faults []string) (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, feature := range features {
		for _, f := range faults {
			if m.cells[[2]string{feature, f}].tried == 0 {
				list = append(list, feature+" with "+f)
			}
		}
	}
	return list
}
