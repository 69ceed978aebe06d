package spelling

// maxEdits is by how many edits two names may differ of which one was meant for the other.
const maxEdits = 2

// Nearest returns the name of all that differs least from name, the first of several; "" if none
// differs by one or two edits. An edit inserts, takes away or replaces a byte, or swaps two
// neighbours.
func Nearest(name string, all []string) (nearest string) {
	best := min(maxEdits, len(name)/2) + 1
	for _, other := range all {
		if d := edits(name, other, best); d > 0 && d < best {
			best, nearest = d, other
		}
	}
	return nearest
}

// edits counts the edits that turn a into b. It returns bound if they are as many or more. It is
// the optimal string alignment distance.
func edits(a, b string, bound int) int {
	if max(len(a)-len(b), len(b)-len(a)) >= bound {
		return bound
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			row[j+1] = min(last[j+1], row[j]) + 1
			if a[i] == b[j] {
				row[j+1] = last[j]
			} else {
				row[j+1] = min(row[j+1], last[j]+1)
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], bound)
}
