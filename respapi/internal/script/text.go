package script

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
)

// textFunctions returns those of string. Patterns are not there, whose time nothing bounds.
func (s *state) textFunctions() map[string]lua.LGFunction {
	all := map[string]lua.LGFunction{
		"byte": s.bytes, "char": s.char, "find": s.find, "format": s.format, "rep": s.repeat, "sub": sub,
		"len": func(vm *lua.LState) int { vm.Push(lua.LNumber(len(textAt(vm, 1)))); return 1 },
	}
	for name, change := range map[string]func(string) string{"lower": lower, "upper": upper, "reverse": reverse} {
		all[name] = func(vm *lua.LState) int {
			text := textAt(vm, 1)
			s.mustText(vm, int64(len(text)))
			vm.Push(lua.LString(change(text)))
			return 1
		}
	}
	for _, name := range [...]string{"match", "gmatch", "gsub"} {
		all[name] = func(vm *lua.LState) int {
			vm.RaiseError("string.%s is not there: see docs/redis.md", name)
			return 0
		}
	}
	return all
}

// textOf returns a text or a number as a text.
func textOf(v lua.LValue) (text string, ok bool) {
	switch v := v.(type) {
	case lua.LString:
		return string(v), true
	case lua.LNumber:
		return written(v), true
	}
	return "", false
}

// textAt returns an argument that is a text, or a number.
func textAt(vm *lua.LState, i int) string {
	text, ok := textOf(vm.Get(i))
	if !ok {
		vm.RaiseError("bad argument #%d (string expected, got %s)", i, vm.Get(i).Type())
	}
	return text
}

// unusual returns how C writes a number that has no digits; "" for the others.
func unusual(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case f != f:
		return "nan"
	}
	return ""
}

// argument returns a number as a command gets it: with all digits.
func argument(f float64) []byte {
	switch {
	case unusual(f) != "":
		return []byte(unusual(f))
	case f == math.Trunc(f) && math.Abs(f) < 1<<63:
		return strconv.AppendInt(nil, int64(f), 10)
	}
	return strconv.AppendFloat(nil, f, 'g', 17, 64)
}

// written returns a number as Lua writes it.
func written(n lua.LNumber) string {
	f := float64(n)
	switch {
	case unusual(f) != "":
		return unusual(f)
	case f == math.Trunc(f) && math.Abs(f) < 1e14:
		return strconv.FormatInt(int64(f), 10)
	}
	text := strconv.FormatFloat(f, 'g', 14, 64)
	mantissa, exponent, _ := strings.Cut(text, "e")
	if strings.Contains(mantissa, ".") {
		mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
	}
	if exponent != "" {
		mantissa += "e" + exponent
	}
	return mantissa
}

func (s *state) toString(vm *lua.LState) int {
	v := vm.CheckAny(1)
	if text, ok := textOf(v); ok {
		vm.Push(lua.LString(text))
	} else {
		vm.Push(lua.LString(v.String()))
	}
	return 1
}

func (s *state) toNumber(vm *lua.LState) int {
	base := vm.OptInt(2, 10)
	v := vm.CheckAny(1)
	if n, ok := v.(lua.LNumber); ok && base == 10 {
		vm.Push(n)
		return 1
	}
	text, _ := textOf(v)
	if n, ok := parseNumber(text, base); ok {
		vm.Push(lua.LNumber(n))
	} else {
		vm.Push(lua.LNil)
	}
	return 1
}

// parseNumber reads a number as Lua does, which takes what C takes.
func parseNumber(text string, base int) (float64, bool) {
	if len(text) > 200 {
		return 0, false
	}
	text = strings.Trim(text, " \t\r\n\v\f")
	if strings.Contains(text, "_") || base < 2 || base > 36 {
		return 0, false
	}
	digits := strings.TrimLeft(text, "+-")
	hex := strings.HasPrefix(digits, "0x") || strings.HasPrefix(digits, "0X")
	if base == 10 && hex && strings.ContainsAny(digits, ".pP") {
		n, err := strconv.ParseFloat(text, 64)
		return n, err == nil
	}
	if base != 10 || hex {
		if hex && (base == 10 || base == 16) {
			text, base = strings.Replace(text, digits[:2], "", 1), 16
		}
		n, err := strconv.ParseInt(text, base, 64)
		return float64(n), err == nil
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil || math.IsInf(n, 0) && digits != ""
}

// span returns the bounds of a part of a text, as Lua counts them: from 1, or from the end.
func span(n, from, to int) (int, int) {
	if from < 0 {
		from = max(from+n+1, 1)
	}
	if to < 0 {
		to += n + 1
	}
	return max(from, 1), min(to, n)
}

func sub(vm *lua.LState) int {
	text := textAt(vm, 1)
	from, to := span(len(text), vm.CheckInt(2), vm.OptInt(3, -1))
	if from > to {
		vm.Push(lua.LString(""))
	} else {
		vm.Push(lua.LString(text[from-1 : to]))
	}
	return 1
}

func (s *state) bytes(vm *lua.LState) int {
	text, first := textAt(vm, 1), vm.OptInt(2, 1)
	from, to := span(len(text), first, vm.OptInt(3, first))
	if from > to {
		return 0
	}
	if to-from >= mostRegister {
		vm.RaiseError("string slice too long")
	}
	s.mustTake(vm, int64(to-from+1)*valueMemory)
	for _, c := range []byte(text[from-1 : to]) {
		vm.Push(lua.LNumber(c))
	}
	return to - from + 1
}

func (s *state) char(vm *lua.LState) int {
	b := make([]byte, vm.GetTop())
	s.mustText(vm, int64(2*len(b)))
	for i := range b {
		c := vm.CheckInt(i + 1)
		if c < 0 || c > 255 {
			vm.RaiseError("bad argument #%d to 'char' (invalid value)", i+1)
		}
		b[i] = byte(c)
	}
	vm.Push(lua.LString(b))
	return 1
}

func (s *state) repeat(vm *lua.LState) int {
	text, n := textAt(vm, 1), max(vm.CheckInt(2), 0)
	if len(text) > 0 && n > MostMemory/len(text) {
		s.mustText(vm, MostMemory+1)
	}
	s.mustText(vm, int64(len(text)*n))
	vm.Push(lua.LString(strings.Repeat(text, n)))
	return 1
}

// find looks for a text: a pattern is one only if it has no character that patterns have.
func (s *state) find(vm *lua.LState) int {
	text, part, from := textAt(vm, 1), textAt(vm, 2), vm.OptInt(3, 1)
	if !vm.ToBool(4) && strings.ContainsAny(part, "^$*+?.([%-") {
		vm.RaiseError("string.find looks for texts and not for patterns: see docs/redis.md")
	}
	s.meter.look()
	from, _ = span(len(text), from, -1)
	at := -1
	if from <= len(text)+1 {
		at = strings.Index(text[from-1:], part)
	}
	if at < 0 {
		vm.Push(lua.LNil)
		return 1
	}
	vm.Push(lua.LNumber(from + at))
	vm.Push(lua.LNumber(from + at + len(part) - 1))
	return 2
}

func lower(text string) string { return mapBytes(text, 'A', 'Z', 'a'-'A') }
func upper(text string) string { return mapBytes(text, 'a', 'z', 'A'-'a') }

func mapBytes(text string, from, to byte, add int) string {
	b := []byte(text)
	for i, c := range b {
		if from <= c && c <= to {
			b[i] = byte(int(c) + add)
		}
	}
	return string(b)
}

func reverse(text string) string {
	b := make([]byte, len(text))
	for i := range b {
		b[i] = text[len(text)-1-i]
	}
	return string(b)
}

// format is string.format. Width and precision have at most two digits, as in Lua.
func (s *state) format(vm *lua.LState) int {
	text := textAt(vm, 1)
	var b strings.Builder
	for arg := 2; ; arg++ {
		plain, rest, more := strings.Cut(text, "%")
		s.mustText(vm, int64(2*len(plain)))
		if b.WriteString(plain); !more {
			break
		}
		if strings.HasPrefix(rest, "%") {
			b.WriteByte('%')
			text, arg = rest[1:], arg-1
			continue
		}
		spec, kind, after := specOf(rest)
		if kind == 0 {
			vm.RaiseError("invalid format (width or precision too long, or unknown letter)")
		}
		text = after
		s.mustText(vm, 2*512)
		switch kind {
		case 's', 'q':
			s.formatText(vm, &b, spec, kind, arg)
		case 'c':
			b.WriteByte(byte(vm.CheckInt(arg)))
		default:
			formatNumber(&b, spec, kind, numberAt(vm, arg))
		}
	}
	vm.Push(lua.LString(b.String()))
	return 1
}

// numberAt returns an argument that is a number, or a text with one.
func numberAt(vm *lua.LState, i int) float64 {
	if text, ok := vm.Get(i).(lua.LString); ok {
		if n, ok := parseNumber(string(text), 10); ok {
			return n
		}
	}
	return float64(vm.CheckNumber(i))
}

func formatNumber(b *strings.Builder, spec string, kind byte, n float64) {
	switch kind {
	case 'd', 'i':
		fmt.Fprintf(b, "%"+spec+"d", integer(lua.LNumber(n)))
	case 'u':
		fmt.Fprintf(b, "%"+spec+"d", uint64(integer(lua.LNumber(n))))
	case 'x', 'X', 'o':
		fmt.Fprintf(b, "%"+spec+string(kind), uint64(integer(lua.LNumber(n))))
	default:
		if text := unusual(n); text != "" {
			width, _, _ := strings.Cut(strings.ReplaceAll(spec, "0", ""), ".")
			fmt.Fprintf(b, "%"+strings.Trim(width, "+ #")+"s", text)
			return
		}
		if kind != 'e' && kind != 'E' && kind != 'f' && !strings.Contains(spec, ".") {
			spec += ".6"
		}
		fmt.Fprintf(b, "%"+spec+string(kind), n)
	}
}

func (s *state) formatText(vm *lua.LState, b *strings.Builder, spec string, kind byte, arg int) {
	part, ok := textOf(vm.CheckAny(arg))
	if !ok {
		part = vm.Get(arg).String()
	}
	s.mustText(vm, int64(4*len(part)))
	if kind == 'q' {
		b.WriteString(`"` + strings.NewReplacer("\\", "\\\\", `"`, `\"`, "\n", "\\\n", "\r", "\\r", "\x00", "\\000").Replace(part) + `"`)
		return
	}
	flags := strings.TrimRight(spec, "0123456789.")
	width, precision, cut := strings.Cut(strings.TrimPrefix(spec, flags), ".")
	if n, _ := strconv.Atoi(precision); cut {
		part = part[:min(n, len(part))]
	}
	n, _ := strconv.Atoi(width)
	pad := strings.Repeat(" ", max(n-len(part), 0)) // bytes count
	if strings.Contains(flags, "-") {
		b.WriteString(part + pad)
	} else {
		b.WriteString(pad + part)
	}
}

// specOf splits what follows a percent sign: flags, width and precision, the letter, and what comes
// after. kind is 0 if it is no such thing.
func specOf(text string) (spec string, kind byte, rest string) {
	i := len(text) - len(strings.TrimLeft(text, "-+ #0"))
	digits := func() bool {
		from := i
		for i < len(text) && '0' <= text[i] && text[i] <= '9' {
			i++
		}
		return i-from <= 2
	}
	fits := i <= 5 && digits()
	if fits && i < len(text) && text[i] == '.' {
		i++
		fits = digits()
	}
	if !fits || i >= len(text) || strings.IndexByte("diuxXoceEfgGqs", text[i]) < 0 {
		return "", 0, ""
	}
	return text[:i], text[i], text[i+1:]
}
