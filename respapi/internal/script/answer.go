package script

import (
	"bytes"
	"math"
	"strconv"

	lua "github.com/yuin/gopher-lua"

	"github.com/lapsehq/lapse/respapi/internal/resp"
)

// deepest is how many tables within tables an answer may have.
const deepest = 64

// An answerer writes what a script returns.
type answerer struct {
	meter *meter
	out   *resp.Writer
	made  int // tables and values
}

func (a *answerer) write(v lua.LValue, depth int) {
	a.made++
	if depth > deepest {
		a.meter.fail(boundError("the script returns tables within tables, more than 64 deep"))
	} else if a.made > MostSteps {
		a.meter.fail(boundError("the script returns more than 100000 values"))
	}
	if a.meter.failed != nil {
		return
	}
	switch v := v.(type) {
	case lua.LString:
		if a.meter.text(int64(len(v))) {
			a.out.Text(string(v))
		}
	case lua.LNumber:
		a.out.Int(integer(v))
	case lua.LBool:
		if v {
			a.out.Int(1)
		} else {
			a.out.Null()
		}
	case *lua.LTable:
		a.table(v, depth)
	default:
		a.out.Null()
	}
}

func (a *answerer) table(t *lua.LTable, depth int) {
	if text, ok := t.RawGetString("err").(lua.LString); ok {
		a.out.Error(errorAnswer(string(text)))
		return
	}
	if text, ok := t.RawGetString("ok").(lua.LString); ok {
		a.out.Simple(oneLine(string(text)))
		return
	}
	if f, ok := t.RawGetString("double").(lua.LNumber); ok {
		a.out.Double(float64(f))
		return
	}
	n := 0
	for t.RawGetInt(n+1) != lua.LNil {
		n++
	}
	a.out.Array(n)
	for i := range n {
		a.write(t.RawGetInt(i+1), depth+1)
	}
}

func oneLine(text string) string {
	line := []byte(text)
	for i, c := range line {
		if c == '\r' || c == '\n' {
			line[i] = ' '
		}
	}
	return string(line)
}

// integer returns a number without what is behind the point, as Redis answers it.
func integer(n lua.LNumber) int64 {
	f := float64(n)
	if f != f || f >= math.MaxInt64 || f <= math.MinInt64 {
		return math.MinInt64
	}
	return int64(f)
}

// A reader makes values of an answer.
type reader struct {
	state *state
	rest  []byte
}

// value returns the next value. failed says that it is an error.
func (r *reader) value() (v lua.LValue, failed bool) {
	line, rest, _ := bytes.Cut(r.rest, []byte("\r\n"))
	r.rest = rest
	if len(line) == 0 {
		return lua.LFalse, false
	}
	r.state.meter.text(stepMemory / 16)
	kind, line := line[0], line[1:]
	n, _ := strconv.ParseInt(string(line), 10, 64)
	switch kind {
	case ':':
		return lua.LNumber(n), false
	case '+':
		return r.state.single("ok", string(line)), false
	case '-':
		return r.state.single("err", string(line)), true
	case '$':
		if n < 0 {
			return lua.LFalse, false
		}
		if n > int64(len(r.rest)) || !r.state.meter.text(n) {
			return lua.LFalse, false
		}
		v = lua.LString(r.rest[:n])
		r.rest = r.rest[n+2:]
		return v, false
	case '*':
		if n < 0 {
			return lua.LFalse, false
		}
		t := r.state.lua.NewTable()
		for range n {
			item, _ := r.value()
			t.Append(item)
		}
		return t, false
	}
	return lua.LFalse, false
}

// single returns a table with one text.
func (s *state) single(name, text string) *lua.LTable {
	t := s.lua.NewTable()
	t.RawSetString(name, lua.LString(text))
	return t
}
