package httpapi

import (
	"bytes"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lapsehq/lapse/tasks"
)

// Bounds of what is decoded.
const (
	maxDepth  = 256 // nested arrays and objects, payload included
	maxFields = 64  // in an object that is interpreted; a payload may have more
	maxFaults = 20  // reported of one object
	maxNamed  = 64  // bytes of an unknown field's name that are repeated in an answer
)

// A scanner reads JSON (RFC 8259) once, from front to back, and returns the kind of value that the
// caller asks for next. It knows two kinds of faults:
//
//   - text that is not JSON ends the scan: err is set, and every later call returns
//     zero values at once, so that only the end needs to be checked;
//   - a value that is JSON but of the wrong kind is skipped and noted in faults, so
//     that all wrong fields are reported together.
//
// Strings and raw values of the result do not change when data is reused, except those of raw,
// which point into data.
type scanner struct {
	data   []byte
	pos    int
	depth  int
	err    error // *syntaxError
	faults []tasks.FieldError
	within string   // prefix of field names, such as "retry."
	keys   [][]byte // names seen in the open objects, a stack

	lastTopic string // of the previous task, see topic
}

// A syntaxError says where a text stops being JSON. It repeats no part of the text.
type syntaxError struct {
	At      int // byte, from 0
	Problem string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("not valid JSON at byte %d: %s", e.At, e.Problem)
}

// scan prepares a scanner. It refuses text that is not UTF-8, so that no other step has to check.
func scan(data []byte) *scanner {
	s := &scanner{data: data}
	if !utf8.Valid(data) {
		s.fail("the text is not valid UTF-8")
	}
	return s
}

func (s *scanner) fail(problem string) {
	if s.err == nil {
		s.err = &syntaxError{At: s.pos, Problem: problem}
	}
}

// fault notes that a field is wrong. An empty name means the object or value that is being read.
func (s *scanner) fault(field, problem string) {
	if len(s.faults) < maxFaults {
		s.faults = append(s.faults, tasks.FieldError{Field: s.name(field), Problem: problem})
	}
}

func (s *scanner) name(field string) string {
	switch {
	case field != "":
		return s.within + field
	case s.within != "":
		return strings.TrimSuffix(s.within, ".")
	}
	return "body"
}

// unknown refuses the field whose name was just read, and skips its value.
func (s *scanner) unknown(key []byte) {
	if len(key) > maxNamed {
		key = append(bytes.ToValidUTF8(key[:maxNamed:maxNamed], nil), "..."...)
	}
	s.fault(string(key), "is not a known field")
	s.skip()
}

// wrong notes a value of the wrong type, and skips it.
func (s *scanner) wrong(field, must string) {
	s.fault(field, "must be "+must)
	s.skip()
}

// peek returns the first byte of the next token, 0 at the end of the text.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// end checks that nothing follows.
func (s *scanner) end() {
	if s.err == nil && (s.peek() != 0 || s.pos < len(s.data)) {
		s.fail("there is more after the end of the value")
	}
}

func (s *scanner) enter() bool {
	if s.depth++; s.depth > maxDepth {
		s.fail("nested deeper than " + strconv.Itoa(maxDepth))
	}
	s.pos++
	return s.err == nil
}

// object yields the names of an object's fields. The loop's body must read the value of each. field
// names the object in a fault if the value is no object.
func (s *scanner) object(field string) iter.Seq[[]byte] {
	return func(yield func(key []byte) bool) {
		if s.err != nil {
			return
		}
		if s.peek() != '{' {
			s.wrong(field, "an object")
			return
		}
		base := len(s.keys)
		s.members(func(key []byte) bool {
			switch {
			case len(s.keys)-base == maxFields:
				s.fault(field, "must have at most "+strconv.Itoa(maxFields)+" fields")
				s.keys = append(s.keys, nil)
				s.skip()
			case len(s.keys)-base > maxFields:
				s.skip()
			case s.seen(base, key):
				s.fault(string(key), givenTwice)
				s.skip()
			default:
				s.keys = append(s.keys, key)
				return yield(key) && s.err == nil
			}
			return s.err == nil
		})
		s.keys = s.keys[:base]
	}
}

func (s *scanner) seen(base int, key []byte) bool {
	for _, k := range s.keys[base:] {
		if bytes.Equal(k, key) {
			return true
		}
	}
	return false
}

// members walks over an object, the next token being its brace.
func (s *scanner) members(member func(key []byte) bool) {
	if !s.enter() {
		return
	}
	for first := true; ; first = false {
		c := s.peek()
		if c == '}' && first {
			break
		}
		if c != '"' {
			s.fail("a field name was expected")
			return
		}
		key := s.text()
		if s.err == nil && s.peek() != ':' {
			s.fail("a colon was expected")
		}
		s.pos++
		if s.err != nil || !member(key) {
			return
		}
		if c = s.peek(); c == '}' {
			break
		} else if c != ',' {
			s.fail("a comma or the end of the object was expected")
			return
		}
		s.pos++
	}
	s.pos++
	s.depth--
}

// array yields the positions of an array's elements. The loop's body must read each element, and
// must not end the loop early unless the rest of the text is not needed.
func (s *scanner) array(field string) iter.Seq[int] {
	return func(yield func(int) bool) {
		if s.err != nil {
			return
		}
		if s.peek() != '[' {
			s.wrong(field, "an array")
			return
		}
		if !s.enter() {
			return
		}
		for i := 0; ; i++ {
			if s.peek() == ']' && i == 0 {
				break
			}
			if !yield(i) || s.err != nil {
				return
			}
			if c := s.peek(); c == ']' {
				break
			} else if c != ',' {
				s.fail("a comma or the end of the array was expected")
				return
			}
			s.pos++
		}
		s.pos++
		s.depth--
	}
}

// str reads a string.
func (s *scanner) str(field string) string {
	if s.err != nil {
		return ""
	}
	if s.peek() != '"' {
		s.wrong(field, "a string")
		return ""
	}
	return string(s.text())
}

// boolean reads true or false.
func (s *scanner) boolean(field string) bool {
	if s.err != nil {
		return false
	}
	c := s.peek()
	if c != 't' && c != 'f' {
		s.wrong(field, "true or false")
		return false
	}
	s.skip()
	return c == 't'
}

// integer reads a number without a fraction that lies within low and high.
func (s *scanner) integer(field string, low, high int) int {
	must := fmt.Sprintf("an integer from %d to %d", low, high)
	return int(s.numeric(field, must, float64(low), float64(high), func(f float64) bool { return f == math.Trunc(f) }))
}

// number64 reads a number that lies within low and high.
func (s *scanner) number64(field string, low, high float64) float64 {
	must := fmt.Sprintf("a number from %v to %v", low, strconv.FormatFloat(high, 'f', -1, 64))
	return s.numeric(field, must, low, high, func(float64) bool { return true })
}

func (s *scanner) numeric(field, must string, low, high float64, fits func(float64) bool) float64 {
	if s.err != nil {
		return 0
	}
	if c := s.peek(); c != '-' && !isDigit(c) {
		s.wrong(field, must)
		return 0
	}
	raw := s.raw()
	if s.err != nil {
		return 0
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !fits(f) || f < low || f > high {
		s.fault(field, "must be "+must)
		return 0
	}
	return f
}

// raw returns the next value as it stands in the text. The result points into the text.
func (s *scanner) raw() []byte {
	s.peek()
	from := s.pos
	s.skip()
	if s.err != nil {
		return nil
	}
	return s.data[from:s.pos:s.pos]
}
