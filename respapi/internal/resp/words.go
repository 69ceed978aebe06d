package resp

// splitWords splits a line into words as redis-cli and inline commands have them: "..." with the
// escapes \n \r \t \b \a \xHH, '...' with \', and other words as they are. It reports false if a
// quote does not end, or does not end a word.
func splitWords(line []byte) (words [][]byte, ok bool) {
	for i := 0; ; {
		for i < len(line) && isSpace(line[i]) {
			i++
		}
		if i == len(line) {
			return words, true
		}
		var word []byte
		for i < len(line) && !isSpace(line[i]) {
			quote := line[i]
			if quote != '"' && quote != '\'' {
				word = append(word, quote)
				i++
				continue
			}
			if word, i, ok = quoted(word, line, i+1, quote); !ok || i < len(line) && !isSpace(line[i]) {
				return nil, false
			}
		}
		words = append(words, append([]byte{}, word...))
	}
}

// quoted appends to word what stands from i on until the quote. It returns where the rest begins.
func quoted(word, line []byte, i int, quote byte) (_ []byte, rest int, ok bool) {
	for ; i < len(line); i++ {
		c := line[i]
		switch {
		case c == quote:
			return word, i + 1, true
		case c != '\\' || i+1 == len(line):
		case quote == '\'':
			if line[i+1] == '\'' {
				i++
				c = '\''
			}
		case line[i+1] == 'x' && i+3 < len(line) && hex(line[i+2]) >= 0 && hex(line[i+3]) >= 0:
			c = byte(hex(line[i+2])<<4 | hex(line[i+3]))
			i += 3
		default:
			i++
			c = unescaped(line[i])
		}
		word = append(word, c)
	}
	return nil, 0, false
}

func unescaped(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'a':
		return '\a'
	}
	return c
}

func hex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

func isSpace(c byte) bool {
	return c == ' ' || c >= '\t' && c <= '\r' || c == 0
}
