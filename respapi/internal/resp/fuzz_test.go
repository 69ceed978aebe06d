package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

const fuzzCommand = 64 << 10

// split reads whole commands from bytes that are all there, in the plainest way. It reports false
// where it has no opinion: at an inline command, or at bytes that are no command.
func split(b []byte) (commands [][]string, whole bool) {
	line := func() (string, bool) {
		text, rest, ok := bytes.Cut(b, []byte("\n"))
		b = rest
		return strings.TrimSuffix(string(text), "\r"), ok
	}
	for len(b) > 0 {
		head, ok := line()
		if !ok || head == "" || head[0] != '*' {
			return commands, false
		}
		n, err := strconv.Atoi(head[1:])
		if err != nil || strconv.Itoa(n) != head[1:] || n > MaxArgs {
			return commands, false
		}
		var command []string
		for range n {
			head, ok := line()
			if !ok || head == "" || head[0] != '$' {
				return commands, false
			}
			size, err := strconv.Atoi(head[1:])
			if err != nil || strconv.Itoa(size) != head[1:] || size < 0 || size+2 > len(b) {
				return commands, false
			}
			command = append(command, string(b[:size]))
			b = b[size+2:]
		}
		if n > 0 {
			commands = append(commands, command)
		}
	}
	return commands, true
}

// readAll returns what a reader makes of bytes, and how it ends.
func readAll(t *testing.T, from io.Reader) (commands [][]string, err error) {
	taken := 0
	r := NewReader(from, Limits{Command: fuzzCommand, Take: func(n int) bool {
		if taken += n; taken < 0 || taken > 2*fuzzCommand+MaxInline {
			t.Fatalf("the reader has taken %d bytes", taken)
		}
		return true
	}})
	for {
		args, err := r.Next()
		for err == nil && args != nil {
			if len(args) == 0 {
				t.Fatal("a command is empty")
			}
			command := make([]string, len(args))
			for i, a := range args {
				command[i] = string(a)
			}
			commands = append(commands, command)
			args, err = r.Ready()
		}
		if err != nil {
			if _, again := r.Ready(); again == nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("after %v the reader goes on", err)
			}
			r.Close()
			if taken != 0 {
				t.Fatalf("%d bytes are not given back", taken)
			}
			return commands, err
		}
	}
}

// Whatever arrives, and in whatever pieces, the reader makes the same commands of it, those of the
// model where that has an opinion, within its bounds.
func FuzzReader(f *testing.F) {
	for _, text := range []string{
		"*1\r\n$4\r\nPING\r\n", "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n", "PING\r\n", "SET \"a b\" 'c' \"\\x00\\n\"\n", "*0\r\n", "*-1\r\n*1\r\n$1\r\na\r\n",
		"*1\n$1\na\r\n", "*1\r\n$-1\r\n", "*2\r\n$536870912\r\n", "*1048577\r\n", "*1\r\n:1\r\n", "\"open\r\n", "$1\r\n", "\r\n\r\n", "*01\r\n", "*1\r\n$01\r\na\r\n",
		"*1\r\n$5000\r\n" + strings.Repeat("x", 5000) + "\r\n", fmt.Sprintf("*1\r\n$%d\r\n", fuzzCommand+1), strings.Repeat("*1\r\n$1\r\na\r\n", 100),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		whole, err := readAll(t, bytes.NewReader(input))
		pieces, errOfPieces := readAll(t, iotest.OneByteReader(bytes.NewReader(input)))
		if !slices.EqualFunc(whole, pieces, slices.Equal) || err.Error() != errOfPieces.Error() {
			t.Errorf("%q: at once %q and %v, in pieces %q and %v", input, whole, err, pieces, errOfPieces)
		}
		want, all := split(input)
		switch {
		case len(input) > fuzzCommand/2: // a bound may end it
		case len(whole) < len(want) || !slices.EqualFunc(whole[:len(want)], want, slices.Equal):
			t.Errorf("%q: the commands are %q, want %q", input, whole, want)
		case all && (len(whole) != len(want) || !errors.Is(err, io.EOF)):
			t.Errorf("%q: the commands are %q and %v, want %q alone", input, whole, err, want)
		}
	})
}

// FuzzParseInt checks that an integer has one text alone, that of its decimal digits.
func FuzzParseInt(f *testing.F) {
	for _, text := range []string{"", "-", "0", "-0", "+1", "01", "-01", " 1", "1_0", "-9223372036854775808", "-9223372036854775809", "9223372036854775807", "9223372036854775808", "99999999999999999999"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want, err := strconv.ParseInt(string(text), 10, 64)
		is := err == nil && strconv.FormatInt(want, 10) == string(text)
		if n, ok := ParseInt(text); ok != is || ok && n != want {
			t.Errorf("%q is %d, %v", text, n, ok)
		}
	})
}
