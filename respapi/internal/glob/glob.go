// Package glob matches the patterns of KEYS, SCAN and PSUBSCRIBE, which are those of Redis: * ?
// [a-z] [^a-z] and a backslash before any of them.
//
// It owns the meaning of these patterns. It calls no package of Lapse. Nothing can fail: every
// pattern has a meaning, and the time of a match is bounded by the product of both lengths.
package glob

// Match reports whether a text matches the whole pattern.
func Match[P, T ~string | ~[]byte](pattern P, text T) bool {
	// On a mismatch after a star, the star takes one more byte. Only the last star has to be
	// remembered: what an earlier one could take, the last one can take as well.
	p, t := 0, 0
	star, from := -1, 0
	for t < len(text) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				star, from = p, t
				p++
				continue
			}
			if next, ok := matchOne(pattern, p, text[t]); ok {
				p, t = next, t+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		p, t = star+1, from
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// matchOne matches one byte with what stands at p, and returns where the rest of the pattern
// begins.
func matchOne[P ~string | ~[]byte](pattern P, p int, c byte) (next int, ok bool) {
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '[':
		return matchClass(pattern, p+1, c)
	case '\\':
		if p+1 < len(pattern) {
			p++
		}
	}
	return p + 1, pattern[p] == c
}

// matchClass matches one byte with the class that begins at p. A class without its end goes to the
// end of the pattern.
func matchClass[P ~string | ~[]byte](pattern P, p int, c byte) (next int, ok bool) {
	not := p < len(pattern) && pattern[p] == '^'
	if not {
		p++
	}
	found := false
	for ; ; p++ {
		switch {
		case p >= len(pattern):
			return p, found != not
		case pattern[p] == '\\' && p+1 < len(pattern):
			p++
			found = found || pattern[p] == c
		case pattern[p] == ']':
			return p + 1, found != not
		case p+2 < len(pattern) && pattern[p+1] == '-':
			low, high := pattern[p], pattern[p+2]
			if low > high {
				low, high = high, low
			}
			found = found || c >= low && c <= high
			p += 2
		default:
			found = found || pattern[p] == c
		}
	}
}
