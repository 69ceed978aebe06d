package task

import (
	"fmt"
	"time"
	"unicode/utf8"
)

// NameProblem says what a name (ID, topic, group) must be.
const NameProblem = "must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ - and begin with a letter or a digit"

// checkName returns what is wrong with a name (id, topic, group), or "".
func checkName(field, v string) string {
	if ValidName(v) {
		return ""
	}
	return field + " " + NameProblem
}

// ValidName reports whether v may be the name of a task, a topic or a group.
func ValidName(v string) bool {
	if v == "" || len(v) > MaxIDBytes {
		return false
	}
	for i := 0; i < len(v); i++ {
		c := v[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == ':' || c == '@' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// CheckDelay adds a fault if a delay is out of range.
func (f *Faults) CheckDelay(field string, d time.Duration) {
	if d < 0 || d > MaxAhead {
		f.Add(field, "must be from 0 to 3660 days")
	}
}

// CheckHeaders adds a fault if there are too many headers, or the first name or value that is
// wrong.
func (f *Faults) CheckHeaders(headers map[string]string) {
	if len(headers) > MaxHeaders {
		f.Add("headers", fmt.Sprintf("must be at most %d", MaxHeaders))
		return
	}
	for name, value := range headers {
		if !validHeaderName(name) {
			f.Add("headers", "names must be 1 to 128 characters of a-z 0-9 - _ .")
			return
		}
		for i := 0; i < len(value); i++ {
			if value[i] < ' ' || value[i] == 0x7f {
				f.Add("headers", "values must not hold control characters")
				return
			}
		}
		if !utf8.ValidString(value) {
			f.Add("headers", "values must be UTF-8")
			return
		}
	}
}

// validHeaderName reports whether name may be the name of a header.
func validHeaderName(name string) bool {
	if name == "" || len(name) > MaxIDBytes {
		return false
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}
