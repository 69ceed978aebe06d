package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain is a text that cannot move the cursor, break a table, or change the order in which a
// terminal shows the text around it.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), r == '\u2028', r == '\u2029':
			return ' '
		case isBidiControl(r):
			return -1
		}
		return r
	}, text)
}

// plainLines is plain for a text of several lines.
func plainLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = plain(line)
	}
	return strings.Join(lines, "\n")
}

// isBidiControl reports whether a character controls the direction in which text is shown.
func isBidiControl(r rune) bool {
	switch {
	case r == '\u061c', r == '\u200e', r == '\u200f', r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
		return true
	}
	return false
}

// plainJSON is a JSON document of the same value in which characters that control a terminal are
// escaped. JSON leaves DEL and the controls from U+0080 to U+009F as they are, of which U+009B
// begins a command to the terminal.
func plainJSON(text []byte) []byte {
	var safe []byte
	from := 0
	for i := 0; i < len(text); {
		r, size := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(text[i:])
		}
		if r >= 0x7f && r <= 0x9f || isBidiControl(r) {
			safe = append(safe, text[from:i]...)
			safe = fmt.Appendf(safe, `\u%04x`, r)
			from = i + size
		}
		i += size
	}
	if from == 0 {
		return text
	}
	return append(safe, text[from:]...)
}
