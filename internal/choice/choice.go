// Package choice writes what a value may be, for messages about values that are none of these.
package choice

import (
	"fmt"
	"strings"
)

// Text returns a list such as "a, b or c". It is empty for none.
func Text[T any](values []T) string {
	var b strings.Builder
	for i, v := range values {
		switch {
		case i == 0:
		case i == len(values)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		fmt.Fprint(&b, v)
	}
	return b.String()
}
