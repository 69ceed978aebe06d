// Package glob matches the patterns of KEYS, SCAN and PSUBSCRIBE, which are those of Redis: * ?
// [a-z] [^a-z] and a backslash before any of them.
//
// It owns the meaning of these patterns. It calls no package of Lapse. Every pattern has a meaning;
// what can fail is that one is too long. The time of a match is bounded by the product of both
// lengths.
package glob

import (
	"errors"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// MaxPattern bounds a pattern, in bytes.
const MaxPattern = 4 << 10

// ErrTooLong is returned by Compile for a pattern of more than MaxPattern bytes.
var ErrTooLong = errors.New("the pattern must be at most " + strconv.Itoa(MaxPattern) + " bytes long")

// A token is a part of a pattern: a byte that stands for itself, or one of the following.
type token uint16

const (
	anyByte    token = 1<<8 + iota // ?
	star                           // *
	firstClass                     // the first of Pattern.classes; the next ones follow
)

// A class is the set of the bytes that it has.
type class [4]uint64

func (c *class) add(b byte)      { c[b>>6] |= 1 << (b & 63) }
func (c *class) has(b byte) bool { return c[b>>6]&(1<<(b&63)) != 0 }

// A Pattern is compiled. It is safe for concurrent use.
type Pattern struct {
	tokens  []token // no star follows another one
	classes []class
	least   int // how many bytes a text has at least that matches
}

// Compile reads a pattern. Error: ErrTooLong.
func Compile[P ~string | ~[]byte](pattern P) (*Pattern, error) {
	if len(pattern) > MaxPattern {
		return nil, ErrTooLong
	}
	p := &Pattern{tokens: make([]token, 0, len(pattern))}
	for i := 0; i < len(pattern); i++ {
		next := token(pattern[i])
		switch next {
		case '*':
			next = star
		case '?':
			next = anyByte
		case '[':
			var c class
			c, i = readClass(pattern, i+1)
			next = p.tokenOf(&c)
		case '\\':
			if i+1 < len(pattern) {
				i++
			}
			next = token(pattern[i])
		}
		if next != star {
			p.least++
		} else if n := len(p.tokens); n > 0 && p.tokens[n-1] == star {
			continue
		}
		p.tokens = append(p.tokens, next)
	}
	return p, nil
}

// readClass reads the class that begins at i, and returns where its last byte stands. A class
// without its end goes to the end of the pattern.
func readClass[P ~string | ~[]byte](pattern P, i int) (c class, last int) {
	not := i < len(pattern) && pattern[i] == '^'
	if not {
		i++
	}
	for ; i < len(pattern) && pattern[i] != ']'; i++ {
		switch {
		case pattern[i] == '\\' && i+1 < len(pattern):
			i++
			c.add(pattern[i])
		case i+2 < len(pattern) && pattern[i+1] == '-':
			low, high := int(pattern[i]), int(pattern[i+2])
			for b := min(low, high); b <= max(low, high); b++ {
				c.add(byte(b))
			}
			i += 2
		default:
			c.add(pattern[i])
		}
	}
	if not {
		for w := range c {
			c[w] = ^c[w]
		}
	}
	return c, min(i, len(pattern)-1)
}

// tokenOf returns the token of a class. A class of one byte stands for that byte.
func (p *Pattern) tokenOf(c *class) token {
	n, only := 0, 0
	for w, set := range c {
		if set != 0 {
			n, only = n+bits.OnesCount64(set), w<<6+bits.TrailingZeros64(set)
		}
	}
	switch n {
	case 1:
		return token(only)
	case 256:
		return anyByte
	}
	p.classes = append(p.classes, *c)
	return firstClass + token(len(p.classes)-1)
}

// Size returns how many bytes of memory the pattern takes.
func (p *Pattern) Size() int {
	return int(unsafe.Sizeof(*p)) + cap(p.tokens)*int(unsafe.Sizeof(star)) + cap(p.classes)*int(unsafe.Sizeof(class{}))
}

// Match reports whether a text matches the whole pattern.
//
// The tokens before the first star stand at the beginning of the text, and those after the last one
// at its end. What stands between two stars is looked for from left to right: its leftmost place
// leaves the most to the rest.
func (p *Pattern) Match(text string) bool {
	if len(text) < p.least {
		return false
	}
	rest := p.tokens
	n := slices.Index(rest, star)
	if n < 0 {
		return len(text) == len(rest) && p.begins(rest, text)
	}
	if !p.begins(rest[:n], text) {
		return false
	}
	for {
		rest, text = rest[n+1:], text[n:]
		if n = slices.Index(rest, star); n < 0 {
			break
		}
		at := p.find(rest[:n], text)
		if at < 0 {
			return false
		}
		text = text[at:]
	}
	return len(text) >= len(rest) && p.begins(rest, text[len(text)-len(rest):])
}

// find returns where the text first has these tokens, which are no stars; -1: nowhere.
func (p *Pattern) find(tokens []token, text string) int {
	for at := 0; at+len(tokens) <= len(text); at++ {
		if tokens[0] < anyByte { // most tokens are bytes, of which the next one is found at once
			next := strings.IndexByte(text[at:len(text)-len(tokens)+1], byte(tokens[0]))
			if next < 0 {
				return -1
			}
			at += next
		}
		if p.begins(tokens, text[at:]) {
			return at
		}
	}
	return -1
}

// begins reports whether the text, which is long enough, begins with these tokens.
func (p *Pattern) begins(tokens []token, text string) bool {
	for i, t := range tokens {
		switch {
		case t < anyByte:
			if text[i] != byte(t) {
				return false
			}
		case t >= firstClass:
			if !p.classes[t-firstClass].has(text[i]) {
				return false
			}
		}
	}
	return true
}
