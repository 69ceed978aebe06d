package httpapi

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// This file is the grammar of JSON: the steps of the scanner that only move forward and check.

// skip reads over one value of any kind and checks that it is JSON.
func (s *scanner) skip() {
	if s.err != nil {
		return
	}
	switch c := s.peek(); {
	case c == '"':
		s.quoted()
	case c == '{':
		s.members(func([]byte) bool { s.skip(); return s.err == nil })
	case c == '[':
		for range s.array("") {
			s.skip()
		}
	case c == '-' || isDigit(c):
		s.number()
	case c == 't':
		s.literal("true")
	case c == 'f':
		s.literal("false")
	case c == 'n':
		s.literal("null")
	case s.pos >= len(s.data):
		s.fail("the text ends too early")
	default:
		s.fail("a value was expected")
	}
}

func (s *scanner) literal(word string) {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		s.fail("a value was expected")
		return
	}
	s.pos += len(word)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (s *scanner) digits() bool {
	from := s.pos
	for s.pos < len(s.data) && isDigit(s.data[s.pos]) {
		s.pos++
	}
	return s.pos > from
}

func (s *scanner) at(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

func (s *scanner) number() {
	if s.at('-') {
		s.pos++
	}
	zero := s.at('0')
	from := s.pos
	ok := s.digits() && !(zero && s.pos-from > 1)
	if ok && s.at('.') {
		s.pos++
		ok = s.digits()
	}
	if ok && (s.at('e') || s.at('E')) {
		s.pos++
		if s.at('+') || s.at('-') {
			s.pos++
		}
		ok = s.digits()
	}
	if !ok {
		s.fail("a number was expected")
	}
}

// quoted reads over a string, the next byte being its quote, and reports whether it holds an
// escape.
func (s *scanner) quoted() (escaped bool) {
	s.pos++
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return escaped
		case c == '\\':
			escaped = true
			if !s.escape() {
				s.fail("an unknown escape in a string")
				return escaped
			}
		case c < ' ':
			s.fail("a control character in a string")
			return escaped
		default:
			s.pos++
		}
	}
	s.fail("a string does not end")
	return escaped
}

func (s *scanner) escape() bool {
	s.pos++
	if s.pos >= len(s.data) {
		return false
	}
	c := s.data[s.pos]
	s.pos++
	if c != 'u' {
		return bytes.IndexByte([]byte(`"\/bfnrt`), c) >= 0
	}
	for range 4 {
		if s.pos >= len(s.data) || !isHex(s.data[s.pos]) {
			return false
		}
		s.pos++
	}
	return true
}

func isHex(c byte) bool {
	return isDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')
}

// text reads a string, the next byte being its quote. Without escapes, which is
// the rule, it points into the text.
func (s *scanner) text() []byte {
	from := s.pos
	escaped := s.quoted()
	if s.err != nil {
		return nil
	}
	inner := s.data[from+1 : s.pos-1]
	if !escaped {
		return inner
	}
	out, ok := unescape(inner)
	if !ok {
		s.pos = from
		s.fail("half of a surrogate pair in a string")
	}
	return out
}

// unescape resolves the escapes of a checked string. It reports false for a lone surrogate, which
// is no character.
func unescape(in []byte) ([]byte, bool) {
	out := make([]byte, 0, len(in))
	for i := 0; i < len(in); i++ {
		if in[i] != '\\' {
			out = append(out, in[i])
			continue
		}
		i++
		switch in[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hexRune(in[i+1:])
			i += 4
			if utf16.IsSurrogate(r) {
				if len(in)-i < 7 || in[i+1] != '\\' || in[i+2] != 'u' {
					return nil, false
				}
				if r = utf16.DecodeRune(r, hexRune(in[i+3:])); r == utf8.RuneError {
					return nil, false
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default: // a quote, a slash or a backslash
			out = append(out, in[i])
		}
	}
	return out, true
}

func hexRune(in []byte) rune {
	n, _ := strconv.ParseUint(string(in[:4]), 16, 32) // checked by escape
	return rune(n)
}
