package resp

import (
	"math"
	"strconv"
)

// A Writer puts answers together, in the version of the protocol that the connection speaks. Its
// methods append to Buf.
type Writer struct {
	Buf []byte
	// Three: version 3 of the protocol, else 2. Maps, sets and pushes are arrays there.
	Three bool
}

func (w *Writer) head(kind byte, n int64) {
	w.Buf = append(w.Buf, kind)
	w.Buf = strconv.AppendInt(w.Buf, n, 10)
	w.end()
}

func (w *Writer) end() { w.Buf = append(w.Buf, '\r', '\n') }

// Simple writes a simple string, which has no line break.
func (w *Writer) Simple(text string) {
	w.Buf = append(w.Buf, '+')
	w.Buf = append(w.Buf, text...)
	w.end()
}

// OK writes the simple string OK.
func (w *Writer) OK() { w.Simple("OK") }

// Error writes an error, which begins with its code. Line breaks in it become spaces.
func (w *Writer) Error(text string) {
	w.Buf = append(w.Buf, '-')
	for _, c := range []byte(text) {
		if c == '\r' || c == '\n' {
			c = ' '
		}
		w.Buf = append(w.Buf, c)
	}
	w.end()
}

// Int writes an integer.
func (w *Writer) Int(n int64) { w.head(':', n) }

// Flag writes 1 or 0.
func (w *Writer) Flag(yes bool) {
	if yes {
		w.Int(1)
	} else {
		w.Int(0)
	}
}

// Bulk writes a bulk string.
func (w *Writer) Bulk(b []byte) {
	w.head('$', int64(len(b)))
	w.Buf = append(w.Buf, b...)
	w.end()
}

// Text writes a bulk string.
func (w *Writer) Text(s string) {
	w.head('$', int64(len(s)))
	w.Buf = append(w.Buf, s...)
	w.end()
}

// Null writes that there is no string.
func (w *Writer) Null() {
	if w.Three {
		w.Buf = append(w.Buf, "_\r\n"...)
	} else {
		w.Buf = append(w.Buf, "$-1\r\n"...)
	}
}

// NullArray writes that there is no array.
func (w *Writer) NullArray() {
	if w.Three {
		w.Buf = append(w.Buf, "_\r\n"...)
	} else {
		w.Buf = append(w.Buf, "*-1\r\n"...)
	}
}

// Array begins an array of n values, which follow.
func (w *Writer) Array(n int) { w.head('*', int64(n)) }

// Map begins a map of n pairs, which follow.
func (w *Writer) Map(n int) {
	if w.Three {
		w.head('%', int64(n))
	} else {
		w.head('*', 2*int64(n))
	}
}

// Set begins a set of n values, which follow.
func (w *Writer) Set(n int) {
	if w.Three {
		w.head('~', int64(n))
	} else {
		w.head('*', int64(n))
	}
}

// Push begins a message of n values, which is no answer to a command.
func (w *Writer) Push(n int) {
	if w.Three {
		w.head('>', int64(n))
	} else {
		w.head('*', int64(n))
	}
}

// Double writes a number; in version 2 a bulk string.
func (w *Writer) Double(f float64) {
	text := strconv.FormatFloat(f, 'g', 17, 64)
	switch {
	case math.IsInf(f, 1):
		text = "inf"
	case math.IsInf(f, -1):
		text = "-inf"
	case f == math.Trunc(f) && math.Abs(f) < 1e17:
		text = strconv.FormatFloat(f, 'f', -1, 64)
	}
	if !w.Three {
		w.Text(text)
		return
	}
	w.Buf = append(w.Buf, ',')
	w.Buf = append(w.Buf, text...)
	w.end()
}

// Verbatim writes a text for people; in version 2 a bulk string.
func (w *Writer) Verbatim(text string) {
	if !w.Three {
		w.Text(text)
		return
	}
	w.head('=', int64(len(text)+4))
	w.Buf = append(w.Buf, "txt:"...)
	w.Buf = append(w.Buf, text...)
	w.end()
}
