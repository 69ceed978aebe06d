// Package pagetest has what the generators of pages in docs share.
//
// It owns nothing, calls no other package of Lapse and cannot fail. Only tests and scripts use it.
package pagetest

import (
	"strings"
	"unicode/utf8"
)

// columns is how wide prose may be, as TestProse checks it.
const columns = 100

// Wrap breaks the paragraphs and items of a Markdown page anew in which a line is too wide. Tables,
// headings and code keep their lines. A code span stays on one line.
func Wrap(text string) string {
	var out, block []string
	flush := func() {
		out = append(out, wrapBlock(block)...)
		block = nil
	}
	code := false
	for _, line := range strings.Split(text, "\n") {
		fence := strings.HasPrefix(line, "```")
		if fence {
			code = !code
		}
		if code || fence || line == "" || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "#") {
			flush()
			out = append(out, line)
			continue
		}
		if strings.HasPrefix(line, "- ") {
			flush()
		}
		block = append(block, line)
	}
	flush()
	return strings.Join(out, "\n")
}

// wrapBlock breaks one paragraph or item anew, if a line of it is too wide.
func wrapBlock(lines []string) []string {
	wide, indent := false, ""
	for _, line := range lines {
		wide = wide || utf8.RuneCountInString(line) > columns
	}
	if !wide {
		return lines
	}
	if strings.HasPrefix(lines[0], "- ") {
		indent = "  "
	}
	var wrapped []string
	line := ""
	for _, word := range words(strings.Join(lines, " ")) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > columns:
			wrapped = append(wrapped, line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	return append(wrapped, line)
}

// words are what stands between spaces; the spaces of a code span do not count.
func words(text string) (all []string) {
	open := false
	for _, field := range strings.Fields(text) {
		if open {
			all[len(all)-1] += " " + field
		} else {
			all = append(all, field)
		}
		if strings.Count(field, "`")%2 == 1 {
			open = !open
		}
	}
	return all
}
