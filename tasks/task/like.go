package task

import (
	"strings"

	"github.com/google/uuid"
)

// MaxLike bounds what LikeError returns, in bytes.
const MaxLike = 120

// NoError is LikeError of a task without a last error.
const NoError = "(none)"

// LikeError returns what errors have in common that differ in numbers only: the beginning of the
// first line, of at most MaxLike bytes, in which a # takes the place of each UUID and of each word
// that has a digit. A word consists of letters, digits and what is not ASCII. Numbers from 100 to
// 599 stay: they are statuses of HTTP. LikeError of what it returns is the same.
//
//	"order 4242: HTTP 503 after 1.25s"  ->  "order #: HTTP 503 after #.#"
func LikeError(text string) string {
	text = strings.TrimSpace(Cut(text, MaxReason))
	if end := strings.IndexAny(text, "\r\n"); end >= 0 {
		text = strings.TrimSpace(text[:end])
	}
	if text == "" {
		return NoError
	}
	like := withoutNumbers(text)
	if len(like) > MaxLike {
		// What the end has cut may be a number now.
		like = withoutNumbers(strings.TrimSpace(Cut(like, MaxLike)))
	}
	return like
}

func withoutNumbers(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for i := 0; i < len(text); {
		n, digit := wordAt(text[i:])
		switch {
		case n == 0:
			b.WriteByte(text[i])
			i++
			continue
		case n == 8 && i+uuidLength <= len(text) && uuid.Validate(text[i:i+uuidLength]) == nil:
			n = uuidLength
			b.WriteByte('#')
		case digit && !isStatus(text[i:i+n]):
			b.WriteByte('#')
		default:
			b.WriteString(text[i : i+n])
		}
		i += n
	}
	return b.String()
}

const uuidLength = 36

// wordAt returns the length of the word at the beginning of a text, and whether it has a digit.
func wordAt(text string) (n int, digit bool) {
	for n < len(text) {
		switch c := text[n]; {
		case '0' <= c && c <= '9':
			digit = true
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c >= 0x80:
		default:
			return n, digit
		}
		n++
	}
	return n, digit
}

// isStatus reports whether a word is a number from 100 to 599.
func isStatus(word string) bool {
	if len(word) != 3 || word[0] < '1' || word[0] > '5' {
		return false
	}
	return '0' <= word[1] && word[1] <= '9' && '0' <= word[2] && word[2] <= '9'
}
