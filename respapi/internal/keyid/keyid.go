// Package keyid turns keys into ids of tasks, and back.
//
// It owns this mapping, which is stored: an id must mean the same key for ever. It calls package
// task for the alphabet of ids. Nothing can fail but a key that is too long.
//
// An id has 1 to 128 of A-Z a-z 0-9 . _ : @ - and begins with a letter or a digit.
//
//	the key                                       its id
//	of that alphabet without @                    itself: order:42
//	with other bytes, or @                        each such byte as @ and two digits of its
//	                                              hexadecimal value: a b -> a@20b
//	that begins with none of A-Z a-z 0-9,         k@. and the rest as above: :x -> k@.:x
//	or is empty
//	whose id would be longer than 128 bytes       k@- and the SHA-256 of the key in hexadecimal
//
// An id of the last kind does not tell its key: the task has it in the header Header, escaped as
// above. The ids of tasks that were not made through keys are keys too, unless an @ in them is
// followed by something else.
package keyid

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/lapsehq/lapse/tasks/task"
)

const (
	// MaxKey is how long a key is at most, in bytes.
	MaxKey = 512
	// Header names the header that has a key whose id does not tell it.
	Header = "lapse-key"

	marked = "k@."
	hashed = "k@-"
	digits = "0123456789abcdef"
)

// isPlain reports whether a byte stands for itself.
func isPlain(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == ':', c == '-', c == '_', c == '.':
		return true
	}
	return false
}

func beginsID(c byte) bool {
	return c != ':' && c != '-' && c != '_' && c != '.' && isPlain(c)
}

// IsID reports whether a key is its own id.
func IsID(key []byte) bool {
	if len(key) == 0 || len(key) > task.MaxIDBytes || !beginsID(key[0]) {
		return false
	}
	for _, c := range key {
		if !isPlain(c) {
			return false
		}
	}
	return true
}

// escape returns the key in the alphabet of ids.
func escape(key []byte) string {
	n := len(key)
	for _, c := range key {
		if !isPlain(c) {
			n += 2
		}
	}
	if n == len(key) {
		return string(key)
	}
	var b strings.Builder
	b.Grow(n)
	for _, c := range key {
		if isPlain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('@')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

// unescape is the reverse of escape. It reports false for a text that escape does not return.
func unescape(text string) (string, bool) {
	if !strings.Contains(text, "@") {
		return text, true
	}
	key := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '@' {
			if i+2 >= len(text) {
				return "", false
			}
			high, low := strings.IndexByte(digits, text[i+1]), strings.IndexByte(digits, text[i+2])
			if high < 0 || low < 0 || isPlain(byte(high<<4|low)) {
				return "", false
			}
			c = byte(high<<4 | low)
			i += 2
		}
		key = append(key, c)
	}
	return string(key), true
}

// Encode returns the id of a key of at most MaxKey bytes. escaped is empty unless the task must
// have it as its Header.
func Encode(key []byte) (id, escaped string) {
	text := escape(key)
	if len(key) == 0 || !beginsID(key[0]) {
		id = marked + text
	} else {
		id = text
	}
	if len(id) <= task.MaxIDBytes {
		return id, ""
	}
	sum := sha256.Sum256(key)
	return hashed + hex.EncodeToString(sum[:]), text
}

// Decode returns the key of an id. escaped is the task's Header, where it has one. It reports false
// for an id that is no key's.
func Decode(id, escaped string) (key string, ok bool) {
	switch {
	case strings.HasPrefix(id, hashed):
		key, ok = unescape(escaped)
		if ok {
			again, _ := Encode([]byte(key))
			ok = again == id
		}
		return key, ok
	case strings.HasPrefix(id, marked):
		key, ok = unescape(id[len(marked):])
		return key, ok && (key == "" || !beginsID(key[0]))
	}
	key, ok = unescape(id)
	return key, ok && key != "" && beginsID(key[0])
}

// IsHashed reports whether an id does not tell its key, so that Decode needs the header.
func IsHashed(id string) bool { return strings.HasPrefix(id, hashed) }
