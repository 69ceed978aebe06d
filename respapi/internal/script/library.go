package script

import (
	"crypto/sha1" // as redis.sha1hex has it
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
)

// open makes the globals of scripts. Those of the interpreter are taken whose arguments bound what
// they take; the others are made here, or are not there.
func (s *state) open() {
	vm := s.lua
	opened := func(open lua.LGFunction, names ...string) map[string]lua.LValue {
		vm.Push(vm.NewFunction(open))
		vm.Call(0, 1)
		all, some := vm.Get(-1).(*lua.LTable), make(map[string]lua.LValue)
		vm.Pop(1)
		for _, name := range names {
			some[name] = all.RawGetString(name)
		}
		return some
	}
	globals := opened(lua.OpenBase, "assert", "error", "ipairs", "next", "pairs", "pcall", "select", "type", "unpack", "xpcall")
	maths := opened(lua.OpenMath, "abs", "acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "deg", "exp", "floor", "fmod",
		"frexp", "huge", "ldexp", "log", "log10", "max", "min", "modf", "pi", "pow", "rad", "random", "sin", "sinh", "sqrt", "tan", "tanh")
	texts := opened(lua.OpenString, "byte", "char", "len", "sub")
	tables := opened(lua.OpenTable, "getn", "maxn", "remove", "sort")
	add := func(to map[string]lua.LValue, name string, f lua.LGFunction) { to[name] = vm.NewFunction(f) }
	add(globals, "tonumber", s.toNumber)
	add(globals, "tostring", s.toString)
	add(maths, "mod", func(vm *lua.LState) int {
		vm.Push(lua.LNumber(math.Mod(float64(vm.CheckNumber(1)), float64(vm.CheckNumber(2)))))
		return 1
	})
	add(texts, "find", s.find)
	add(texts, "format", s.format)
	add(texts, "rep", s.repeat)
	for name, change := range map[string]func(string) string{"lower": lower, "upper": upper, "reverse": reverse} {
		add(texts, name, func(vm *lua.LState) int {
			text := vm.CheckString(1)
			s.mustText(int64(len(text)))
			vm.Push(lua.LString(change(text)))
			return 1
		})
	}
	for _, name := range [...]string{"match", "gmatch", "gsub"} {
		add(texts, name, func(vm *lua.LState) int {
			vm.RaiseError("string.%s is not there: see docs/redis.md", name)
			return 0
		})
	}
	add(tables, "concat", s.tableConcat)
	add(tables, "insert", s.tableInsert)

	redis := map[string]lua.LValue{"LOG_DEBUG": lua.LNumber(0), "LOG_VERBOSE": lua.LNumber(1), "LOG_NOTICE": lua.LNumber(2), "LOG_WARNING": lua.LNumber(3)}
	add(redis, "call", func(vm *lua.LState) int { return s.call(vm, true) })
	add(redis, "pcall", func(vm *lua.LState) int { return s.call(vm, false) })
	add(redis, "error_reply", func(vm *lua.LState) int { vm.Push(s.single("err", vm.CheckString(1))); return 1 })
	add(redis, "status_reply", func(vm *lua.LState) int { vm.Push(s.single("ok", vm.CheckString(1))); return 1 })
	add(redis, "sha1hex", func(vm *lua.LState) int {
		sum := sha1.Sum([]byte(vm.CheckString(1)))
		vm.Push(lua.LString(hex.EncodeToString(sum[:])))
		return 1
	})
	add(redis, "log", func(vm *lua.LState) int {
		s.meter.host.Log(vm.CheckString(2))
		return 0
	})
	// Scripts before Redis 7 call it; it says that effects are replicated, and so they are.
	add(redis, "replicate_commands", func(vm *lua.LState) int { vm.Push(lua.LTrue); return 1 })

	vm.SetMetatable(lua.LString(""), s.table(map[string]lua.LValue{"__index": s.table(texts)}))
	for name, library := range map[string]map[string]lua.LValue{"math": maths, "string": texts, "table": tables, "redis": redis} {
		globals[name] = s.fixed(s.table(library))
	}
	globals["server"] = globals["redis"] // as Valkey calls it
	known := s.table(globals)
	known.Metatable = s.table(map[string]lua.LValue{"__index": vm.NewFunction(func(vm *lua.LState) int {
		name := vm.Get(2).String()
		switch name {
		case "bit", "cjson", "cmsgpack", "struct":
			vm.RaiseError("the library %s is not there: see docs/redis.md", name)
		}
		vm.RaiseError("Script attempted to access nonexistent global variable '%s'", name)
		return 0
	})})
	vm.G.Global.ForEach(func(k, _ lua.LValue) { vm.G.Global.RawSet(k, lua.LNil) })
	vm.G.Global.Metatable = s.fixed(known).Metatable
}

func (s *state) table(entries map[string]lua.LValue) *lua.LTable {
	t := s.lua.CreateTable(0, len(entries))
	for name, v := range entries {
		t.RawSetString(name, v)
	}
	return t
}

// fixed returns a table with the entries of another one, which no script can change.
func (s *state) fixed(of *lua.LTable) *lua.LTable {
	t := s.lua.NewTable()
	t.Metatable = s.table(map[string]lua.LValue{"__index": of, "__newindex": s.lua.NewFunction(func(vm *lua.LState) int {
		vm.RaiseError("Attempt to modify a readonly table")
		return 0
	})})
	return t
}

// mustText counts a text before it is made. Beyond the bound, the script ends.
func (s *state) mustText(n int64) {
	if !s.meter.text(n) {
		s.lua.RaiseError("%s", s.meter.failed.Error())
	}
}

// raise raises an error of the library, as redis.call does.
func (s *state) raise(text string) {
	v := s.single("err", text)
	v.RawSetString(lineField, lua.LString(strings.Trim(strings.TrimPrefix(s.lua.Where(1), chunkName), ": ")))
	s.lua.Error(v, 1)
}

// call is redis.call, which raises the error of a command, or redis.pcall, which returns it.
func (s *state) call(vm *lua.LState, raise bool) int {
	args := make([][]byte, vm.GetTop())
	if len(args) == 0 {
		s.raise("ERR Please specify at least one argument for this redis lib call")
	}
	for i := range args {
		switch v := vm.Get(i + 1).(type) {
		case lua.LString:
			s.mustText(int64(len(v)))
			args[i] = []byte(v)
		case lua.LNumber:
			args[i] = argument(float64(v))
		default:
			s.raise("ERR Lua redis lib command arguments must be strings or integers")
		}
	}
	r := reader{s, s.meter.host.Call(args)}
	v, failed := r.value()
	s.meter.look()
	if s.meter.failed != nil {
		vm.RaiseError("%s", s.meter.failed.Error())
	}
	if failed && raise {
		s.raise(v.(*lua.LTable).RawGetString("err").String())
	}
	vm.Push(v)
	return 1
}

// argument returns a number as a command gets it: with all digits.
func argument(f float64) []byte {
	if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
		return strconv.AppendInt(nil, int64(f), 10)
	}
	return strconv.AppendFloat(nil, f, 'g', 17, 64)
}

// written returns a number as Lua writes it.
func written(n lua.LNumber) string {
	f := float64(n)
	switch {
	case f == math.Trunc(f) && math.Abs(f) < 1e14:
		return strconv.FormatInt(int64(f), 10)
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case f != f:
		return "nan"
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

func (s *state) runConcat(vm *lua.LState) int {
	parts, size := make([]string, vm.GetTop()), 0
	for i := range parts {
		text, ok := textOf(vm.Get(i + 1))
		if !ok {
			vm.RaiseError("attempt to concatenate a %s value", vm.Get(i+1).Type())
		}
		parts[i], size = text, size+len(text)
	}
	s.mustText(int64(size))
	vm.Push(lua.LString(strings.Join(parts, "")))
	return 1
}

// slotMemory is what each entry takes of a table that grows to its end.
const slotMemory = 96

// runSlot counts the room for an entry of a table, and returns its key. nil: a table that is made.
func (s *state) runSlot(vm *lua.LState) int {
	key := vm.Get(2)
	if n, ok := key.(lua.LNumber); ok && n > 1 {
		length := 0
		if t, ok := vm.Get(1).(*lua.LTable); ok {
			length = t.Len()
		}
		if gap := float64(n) - float64(length) - 1; gap > 0 {
			s.mustText(int64(min(gap, MostMemory)) * slotMemory)
		}
	}
	vm.Push(key)
	return 1
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
	if n, ok := parseNumber(strings.Trim(text, " \t\r\n\v\f"), base); ok {
		vm.Push(lua.LNumber(n))
	} else {
		vm.Push(lua.LNil)
	}
	return 1
}

// parseNumber reads a number as Lua does.
func parseNumber(text string, base int) (float64, bool) {
	if len(text) > 100 || strings.Contains(text, "_") || base < 2 || base > 36 {
		return 0, false
	}
	digits := strings.TrimLeft(text, "+-")
	if hex := strings.HasPrefix(digits, "0x") || strings.HasPrefix(digits, "0X"); base != 10 || hex {
		if hex && (base == 10 || base == 16) {
			text, base = strings.Replace(text, digits[:2], "", 1), 16
		}
		n, err := strconv.ParseInt(text, base, 64)
		return float64(n), err == nil
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil
}

func (s *state) repeat(vm *lua.LState) int {
	text, n := vm.CheckString(1), max(vm.CheckInt(2), 0)
	if len(text) > 0 && n > MostMemory/len(text) {
		s.mustText(MostMemory + 1)
	}
	s.mustText(int64(len(text) * n))
	vm.Push(lua.LString(strings.Repeat(text, n)))
	return 1
}

// find looks for a text: a pattern is one only if it has no character that patterns have.
func (s *state) find(vm *lua.LState) int {
	text, part, from := vm.CheckString(1), vm.CheckString(2), vm.OptInt(3, 1)
	if !vm.ToBool(4) && strings.ContainsAny(part, "^$*+?.([%-") {
		vm.RaiseError("string.find looks for texts and not for patterns: see docs/redis.md")
	}
	if from < 0 {
		from = max(len(text)+from+1, 1)
	}
	from = max(from, 1)
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

func (s *state) tableConcat(vm *lua.LState) int {
	t, between := vm.CheckTable(1), vm.OptString(2, "")
	from, to := vm.OptInt(3, 1), vm.OptInt(4, t.Len())
	var b strings.Builder
	for i := from; i <= to; i++ {
		text, ok := textOf(t.RawGetInt(i))
		if !ok {
			vm.RaiseError("invalid value (%s) at index %d in table for 'concat'", t.RawGetInt(i).Type(), i)
		}
		s.mustText(int64(2 * (len(text) + len(between)))) // a builder grows
		b.WriteString(text)
		if i < to {
			b.WriteString(between)
		}
	}
	vm.Push(lua.LString(b.String()))
	return 1
}

func (s *state) tableInsert(vm *lua.LState) int {
	t := vm.CheckTable(1)
	switch vm.GetTop() {
	case 2:
		t.Append(vm.Get(2))
	case 3:
		at := vm.CheckInt(2)
		if at < 1 || at > t.Len()+1 {
			vm.RaiseError("bad argument #2 to 'insert' (position out of bounds)")
		}
		t.Insert(at, vm.Get(3))
	default:
		vm.RaiseError("wrong number of arguments to 'insert'")
	}
	return 0
}

// format is string.format. Width and precision have at most two digits, as in Lua.
func (s *state) format(vm *lua.LState) int {
	text := vm.CheckString(1)
	var b strings.Builder
	for arg := 2; ; arg++ {
		plain, rest, more := strings.Cut(text, "%")
		s.mustText(int64(2 * len(plain)))
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
		s.mustText(2 * 512)
		switch kind {
		case 'd', 'i':
			fmt.Fprintf(&b, "%"+spec+"d", int64(vm.CheckNumber(arg)))
		case 'u':
			fmt.Fprintf(&b, "%"+spec+"d", uint64(vm.CheckNumber(arg)))
		case 'c':
			b.WriteByte(byte(vm.CheckInt(arg)))
		case 'x', 'X', 'o':
			fmt.Fprintf(&b, "%"+spec+string(kind), int64(vm.CheckNumber(arg)))
		case 'e', 'E', 'f', 'g', 'G':
			fmt.Fprintf(&b, "%"+spec+string(kind), float64(vm.CheckNumber(arg)))
		case 'q':
			quoted := strconv.Quote(vm.CheckString(arg))
			s.mustText(int64(6 * len(quoted)))
			b.WriteString(quoted)
		case 's':
			part, ok := textOf(vm.CheckAny(arg))
			if !ok {
				part = vm.Get(arg).String()
			}
			s.mustText(int64(2 * len(part)))
			fmt.Fprintf(&b, "%"+spec+"s", part)
		}
	}
	vm.Push(lua.LString(b.String()))
	return 1
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
