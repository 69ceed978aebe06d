package main

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
)

// A mutant is one fault.
type mutant struct {
	number  int // its place in the list, from 1
	file    string
	inside  string // the function; "" for any place in the file
	from    string
	to      string
	promise string // the digit, or "-"
	breaks  string // what breaks
	pkg     string // of the tests that should notice
	run     string // the expression of these tests
	same    string // why it changes nothing; "" if it does
}

// key names a mutant in the state file. It changes with all that decides on the result.
func (m *mutant) key() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{m.file, m.inside, m.from, m.to, m.pkg, m.run}, "\x00")))
	return fmt.Sprintf("%x", sum[:8])
}

func (m *mutant) String() string {
	return fmt.Sprintf("%3d  %s  %s %s: %s", m.number, m.promise, m.file, m.inside, m.breaks)
}

var head = regexp.MustCompile(`^([1-9-]) (\S.*)$`)

// parse reads a list. It returns an error that names the line for what is no entry.
func parse(text string) ([]*mutant, error) {
	var all []*mutant
	var file, pkg, run string
	var m *mutant
	number := 0
	for line := range strings.Lines(text) {
		number++
		wrong := func(why string) error { return fmt.Errorf("line %d: %s: %q", number, why, line) }
		line = strings.TrimSuffix(line, "\n")
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || word == "#":
			m = nil
		case word == "file":
			file, pkg, run, m = rest, "", "", nil
		case word == "test":
			if pkg, run, _ = strings.Cut(rest, " "); run == "" {
				return nil, wrong("a package and an expression are needed")
			}
			m = nil
		case m == nil:
			part := head.FindStringSubmatch(line)
			if part == nil || file == "" || pkg == "" {
				return nil, wrong("not the head of an entry below file and test")
			}
			m = &mutant{number: len(all) + 1, file: file, pkg: pkg, run: run, promise: part[1], breaks: part[2]}
			all = append(all, m)
		case word == "@":
			m.inside = rest
		case word == "-" && m.from == "":
			m.from = rest
		case word == "+" && m.from != "":
			m.to = rest
		case word == "=":
			m.same = rest
		default:
			return nil, wrong("not a part of an entry")
		}
	}
	for _, m := range all {
		if m.from == "" || m.from == m.to {
			return nil, fmt.Errorf("entry %d (%s) replaces nothing", m.number, m.breaks)
		}
	}
	return all, nil
}
