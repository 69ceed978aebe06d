package house

import (
	"cmp"
	"go/types"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"testing"
)

// references counts, for each two files of a package, the declarations in the second that the first
// names: types, functions, methods, constants and variables, each once. Fields are left out, since
// nearly all of them are those of one struct.
type references map[[2]string]int

func (p *program) references(c *typed) references {
	named := map[string]map[types.Object]bool{}
	for name, o := range c.uses {
		v, isVar := o.(*types.Var)
		if o.Pkg() != c.pkg || isVar && v.IsField() {
			continue
		}
		from := p.positions.Position(name.Pos()).Filename
		if named[from] == nil {
			named[from] = map[types.Object]bool{}
		}
		named[from][o] = true
	}
	all := references{}
	for from, objects := range named {
		for o := range objects {
			if to := p.positions.Position(o.Pos()).Filename; to != from {
				all[[2]string{filepath.Base(from), filepath.Base(to)}]++
			}
		}
	}
	return all
}

// up counts the references from a file to one that stands before it.
func (r references) up(order []string) (n int) {
	at := map[string]int{}
	for i, file := range order {
		at[file] = i
	}
	for files, count := range r {
		if at[files[0]] > at[files[1]] {
			n += count
		}
	}
	return n
}

// order puts the files in an order in which few references run back up. It begins with those that
// refer more than they are referred to, and then moves one file at a time to its best place, until
// none has a better one.
func (r references) order() []string {
	surplus := map[string]int{}
	for files, count := range r {
		surplus[files[0]] += count
		surplus[files[1]] -= count
	}
	order := slices.SortedFunc(maps.Keys(surplus), func(a, b string) int {
		return cmp.Or(cmp.Compare(surplus[b], surplus[a]), cmp.Compare(a, b))
	})
	for moved := true; moved; {
		moved = false
		for _, file := range slices.Clone(order) {
			from := slices.Index(order, file)
			best, most := from, 0
			gain := 0
			for i := from - 1; i >= 0; i-- {
				if gain += r[[2]string{file, order[i]}] - r[[2]string{order[i], file}]; gain > most {
					best, most = i, gain
				}
			}
			gain = 0
			for i := from + 1; i < len(order); i++ {
				if gain += r[[2]string{order[i], file}] - r[[2]string{file, order[i]}]; gain > most {
					best, most = i, gain
				}
			}
			if most > 0 {
				order = slices.Insert(slices.Delete(order, from, from+1), best, file)
				moved = true
			}
		}
	}
	return order
}

// upward returns how many of a hundred references between files of a package run back up, in the
// order that has the fewest such, rounded up.
func (p *program) upward(t *testing.T, path string) int {
	r := p.references(p.check(t, path))
	total := 0
	for _, count := range r {
		total += count
	}
	up := r.up(r.order())
	t.Logf("%d of %d references run back up", up, total)
	return int(math.Ceil(100 * float64(up) / float64(total)))
}

// An order without references that run up is found; of a cycle, the weakest part runs up.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		r  references
		up int
	}{
		{references{{"a", "b"}: 1, {"b", "c"}: 1, {"a", "c"}: 5}, 0},
		{references{{"c", "b"}: 1, {"b", "a"}: 9, {"a", "x"}: 1}, 0},
		{references{{"a", "b"}: 3, {"b", "c"}: 2, {"c", "a"}: 4}, 2},
		{references{{"a", "b"}: 3, {"b", "a"}: 1}, 1},
	} {
		if got := c.r.up(c.r.order()); got != c.up {
			t.Errorf("%v: %d references run up in %v, want %d", c.r, got, c.r.order(), c.up)
		}
	}
}
