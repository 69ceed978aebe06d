package commandline

import (
	"fmt"
	"strings"
)

// mostSuggestions is how many names a suggestion has.
const mostSuggestions = 3

// Suggest names what a word that is not known may mean: names that begin with it, or differ from it
// in two letters at most. It returns "" if no name is like it.
func Suggest(word string, names []string) string {
	var like []string
	for _, name := range names {
		if (strings.HasPrefix(name, word) || Distance(word, name) <= 2) && len(like) < mostSuggestions {
			like = append(like, fmt.Sprintf("%q", name))
		}
	}
	switch len(like) {
	case 0:
		return ""
	case 1:
		return ", did you mean " + like[0] + "?"
	}
	return ", did you mean one of " + strings.Join(like, ", ") + "?"
}

// Distance is how many bytes must be inserted, deleted or replaced to make one text of another.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j]+1, row[j+1]+1, cost)
		}
	}
	return row[len(b)]
}
