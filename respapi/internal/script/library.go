package script

import (
	"crypto/sha1" // as redis.sha1hex has it
	"encoding/hex"
	"errors"
	"math"
	"strings"

	lua "github.com/yuin/gopher-lua"
)

// open makes the globals of scripts. Those of the interpreter are taken whose arguments bound what
// they take, and which do as Lua does; the others are made here, or are not there.
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
	made := func(all map[string]lua.LGFunction) map[string]lua.LValue {
		some := make(map[string]lua.LValue, len(all))
		for name, f := range all {
			some[name] = vm.NewFunction(f)
		}
		return some
	}
	globals := opened(lua.OpenBase, "ipairs", "next", "pairs", "select", "type")
	for name, f := range made(map[string]lua.LGFunction{
		"assert": s.assert, "error": s.fail, "pcall": s.pcall, "tonumber": s.toNumber, "tostring": s.toString,
		"unpack": s.unpack, "xpcall": s.xpcall,
	}) {
		globals[name] = f
	}
	maths := opened(lua.OpenMath, "abs", "acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "deg", "exp", "floor", "fmod",
		"frexp", "ldexp", "log", "log10", "max", "min", "modf", "pi", "pow", "rad", "random", "sin", "sinh", "sqrt", "tan", "tanh")
	for name, v := range maths {
		if f, ok := v.(*lua.LFunction); ok {
			maths[name] = vm.NewFunction(withNumbers(f.GFunction))
		}
	}
	maths["huge"], maths["mod"] = lua.LNumber(math.Inf(1)), maths["fmod"]
	texts := made(s.textFunctions())
	tables := opened(lua.OpenTable, "getn", "maxn")
	for name, f := range made(map[string]lua.LGFunction{"concat": s.tableConcat, "insert": s.tableInsert, "remove": s.tableRemove, "sort": s.tableSort}) {
		tables[name] = f
	}
	redis := made(map[string]lua.LGFunction{
		"call":         func(vm *lua.LState) int { return s.call(vm, true) },
		"pcall":        func(vm *lua.LState) int { return s.call(vm, false) },
		"error_reply":  s.errorReply,
		"status_reply": func(vm *lua.LState) int { vm.Push(s.single("ok", textAt(vm, 1))); return 1 },
		"sha1hex": func(vm *lua.LState) int {
			sum := sha1.Sum([]byte(textAt(vm, 1)))
			vm.Push(lua.LString(hex.EncodeToString(sum[:])))
			return 1
		},
		"log": func(vm *lua.LState) int {
			s.meter.host.Log(textAt(vm, 2))
			return 0
		},
		// Scripts before Redis 7 call it; it says that effects are replicated, and so they are.
		"replicate_commands": func(vm *lua.LState) int { vm.Push(lua.LTrue); return 1 },
	})
	for i, name := range [...]string{"LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"} {
		redis[name] = lua.LNumber(i)
	}

	vm.SetMetatable(lua.LString(""), s.table(map[string]lua.LValue{"__index": s.table(texts)}))
	for name, library := range map[string]map[string]lua.LValue{"math": maths, "string": texts, "table": tables, "redis": redis} {
		globals[name] = s.fixed(s.table(library))
	}
	globals["server"] = globals["redis"] // as Valkey calls it
	known := s.table(globals)
	known.Metatable = s.table(map[string]lua.LValue{"__index": vm.NewFunction(noGlobal)})
	vm.G.Global.ForEach(func(k, _ lua.LValue) { vm.G.Global.RawSet(k, lua.LNil) })
	vm.G.Global.Metatable = s.fixed(known).Metatable
}

func noGlobal(vm *lua.LState) int {
	name := vm.Get(2).String()
	switch name {
	case "bit", "cjson", "cmsgpack", "struct":
		vm.RaiseError("the library %s is not there: see docs/redis.md", name)
	}
	vm.RaiseError("Script attempted to access nonexistent global variable '%s'", name)
	return 0
}

func (s *state) table(entries map[string]lua.LValue) *lua.LTable {
	t := s.lua.CreateTable(0, len(entries))
	for name, v := range entries {
		t.RawSetString(name, v)
	}
	return t
}

// fixed returns a table with the entries of another one, which no script can change. It is the only
// kind of table that has a metatable.
func (s *state) fixed(of *lua.LTable) *lua.LTable {
	t := s.lua.NewTable()
	t.Metatable = s.table(map[string]lua.LValue{"__index": of, "__newindex": s.lua.NewFunction(func(vm *lua.LState) int {
		vm.RaiseError("Attempt to modify a readonly table")
		return 0
	})})
	return t
}

// ownTable returns an argument that is a table of the script.
func ownTable(vm *lua.LState, i int) *lua.LTable {
	t := vm.CheckTable(i)
	if t.Metatable != lua.LNil {
		vm.RaiseError("Attempt to modify a readonly table")
	}
	return t
}

// mustText counts a text before it is made. Beyond the bound, the script ends.
func (s *state) mustText(vm *lua.LState, n int64) {
	if !s.meter.text(n) {
		vm.RaiseError("%s", s.meter.failed.Error())
	}
}

// mustTake counts what a function takes beside the memory of its step.
func (s *state) mustTake(vm *lua.LState, n int64) {
	if !s.meter.take(n) {
		vm.RaiseError("%s", s.meter.failed.Error())
	}
}

// raise raises an error of the library, as redis.call does.
func (s *state) raise(vm *lua.LState, text string) {
	v := s.single("err", text)
	v.RawSetString(lineField, lua.LString(strings.Trim(strings.TrimPrefix(vm.Where(1), chunkName), ": ")))
	vm.Error(v, 1)
}

// What an argument of a command takes, with what the command keeps of it.
const argumentMemory = 256

// call is redis.call, which raises the error of a command, or redis.pcall, which returns it.
func (s *state) call(vm *lua.LState, raise bool) int {
	args := make([][]byte, vm.GetTop())
	if len(args) == 0 {
		s.raise(vm, "ERR Please specify at least one argument for this redis lib call")
	}
	s.mustTake(vm, int64(len(args)*argumentMemory))
	for i := range args {
		switch v := vm.Get(i + 1).(type) {
		case lua.LString:
			s.mustText(vm, int64(len(v)))
			args[i] = []byte(v)
		case lua.LNumber:
			args[i] = argument(float64(v))
		default:
			s.raise(vm, "ERR Lua redis lib command arguments must be strings or integers")
		}
	}
	r := reader{s, s.meter.host.Call(args)}
	v, failed := r.value()
	s.meter.look()
	if s.meter.failed != nil {
		vm.RaiseError("%s", s.meter.failed.Error())
	}
	if failed && raise {
		s.raise(vm, v.(*lua.LTable).RawGetString("err").String())
	}
	vm.Push(v)
	return 1
}

// errorReply is redis.error_reply. A text without a code gets the general one.
func (s *state) errorReply(vm *lua.LState) int {
	text := strings.TrimPrefix(textAt(vm, 1), "-")
	if !strings.Contains(text, " ") {
		text = "ERR " + text
	}
	s.mustText(vm, int64(len(text)))
	vm.Push(s.single("err", text))
	return 1
}

// errorMemory is how many times the text of an error is in memory while it is raised.
const errorMemory = 4

// fail is error.
func (s *state) fail(vm *lua.LState) int {
	v, level := vm.Get(1), vm.OptInt(2, 1)
	text, ok := textOf(v)
	if !ok {
		vm.Error(v, level)
		return 0
	}
	s.mustText(vm, int64(errorMemory*len(text)))
	vm.Error(lua.LString(text), level)
	return 0
}

func (s *state) assert(vm *lua.LState) int {
	if vm.ToBool(1) {
		return vm.GetTop()
	}
	text, ok := textOf(vm.Get(2))
	switch {
	case ok:
		s.mustText(vm, int64(errorMemory*len(text)))
		vm.Error(lua.LString(text), 0)
	case vm.GetTop() > 1:
		vm.Error(vm.Get(2), 0)
	default:
		vm.RaiseError("assertion failed!")
	}
	return 0
}

// caught calls a function with arguments. It runs on a stack of its own: what the interpreter does
// after an error to all of a stack must not reach the variables of those who go on. It returns what
// the function has returned, or its error.
func (s *state) caught(vm *lua.LState, f lua.LValue, args []lua.LValue) (results []lua.LValue, failed lua.LValue) {
	if s.depth == catchDepth {
		return nil, lua.LString("too many functions are called by pcall within each other")
	}
	s.depth++
	defer func() { s.depth-- }()
	stack, cancel := vm.NewThread()
	if cancel != nil {
		defer cancel()
	}
	stack.SetContext(s.meter)
	stack.Push(f)
	for _, a := range args {
		stack.Push(a)
	}
	if err := stack.PCall(len(args), lua.MultRet, nil); err != nil {
		return nil, raised(err)
	}
	for i := range stack.GetTop() {
		results = append(results, stack.Get(i+1))
	}
	return results, nil
}

// raised returns the value of an error. That of a command is its text, as in Redis.
func raised(err error) lua.LValue {
	var failed *lua.ApiError
	if !errors.As(err, &failed) {
		return lua.LString(err.Error())
	}
	if t, ok := failed.Object.(*lua.LTable); ok && t.RawGetString(lineField) != lua.LNil {
		return t.RawGetString("err")
	}
	return failed.Object
}

func (s *state) pcall(vm *lua.LState) int {
	args := make([]lua.LValue, 0, vm.GetTop())
	for i := 2; i <= vm.GetTop(); i++ {
		args = append(args, vm.Get(i))
	}
	return pushCaught(vm, vm.CheckAny(1), func(f lua.LValue) ([]lua.LValue, lua.LValue) { return s.caught(vm, f, args) })
}

func (s *state) xpcall(vm *lua.LState) int {
	handler := vm.CheckAny(2)
	return pushCaught(vm, vm.CheckAny(1), func(f lua.LValue) ([]lua.LValue, lua.LValue) {
		results, failed := s.caught(vm, f, nil)
		if failed == nil {
			return results, nil
		}
		told, again := s.caught(vm, handler, []lua.LValue{failed})
		if again != nil || len(told) == 0 {
			return nil, lua.LNil
		}
		return nil, told[0]
	})
}

func pushCaught(vm *lua.LState, f lua.LValue, call func(f lua.LValue) ([]lua.LValue, lua.LValue)) int {
	results, failed := call(f)
	if failed != nil {
		vm.Push(lua.LFalse)
		vm.Push(failed)
		return 2
	}
	vm.Push(lua.LTrue)
	for _, v := range results {
		vm.Push(v)
	}
	return 1 + len(results)
}

// valueMemory is what a value takes that a function returns, with the copy of it in a table.
const valueMemory = 64

func (s *state) unpack(vm *lua.LState) int {
	t := vm.CheckTable(1)
	from, to := vm.OptInt(2, 1), vm.OptInt(3, t.Len())
	if from > to {
		return 0
	}
	if to-from >= mostRegister || to-from < 0 {
		vm.RaiseError("too many results to unpack")
	}
	s.mustTake(vm, int64(to-from+1)*valueMemory)
	for i := from; i <= to; i++ {
		vm.Push(t.RawGetInt(i))
	}
	return to - from + 1
}

// runMany counts the values at the end of a table, and returns them.
func (s *state) runMany(vm *lua.LState) int {
	s.mustTake(vm, int64(vm.GetTop())*valueMemory)
	return vm.GetTop()
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
	s.mustText(vm, int64(size))
	vm.Push(lua.LString(strings.Join(parts, "")))
	return 1
}

// slotMemory is what each entry takes of a table that grows to its end.
const slotMemory = 96

// runSlot counts the room for an entry of a table, and returns its key. nil: a table that is made.
func (s *state) runSlot(vm *lua.LState) int {
	key := vm.Get(2)
	if n, ok := key.(lua.LNumber); ok && n > 1 && n < lua.LNumber(lua.MaxArrayIndex) {
		length := 0
		if t, ok := vm.Get(1).(*lua.LTable); ok {
			length = t.Len()
		}
		gap := float64(n) - float64(length) - 1
		if gap > MostMemory/slotMemory {
			s.meter.fail(boundError("the script gives a table an entry far behind its end; a key that is a text may have any value"))
		}
		if gap > 0 {
			s.mustText(vm, int64(gap)*slotMemory)
		}
	}
	vm.Push(key)
	return 1
}

// runNumber returns an operand of arithmetic: what is a number in a text is one.
func (s *state) runNumber(vm *lua.LState) int {
	v := vm.Get(1)
	if text, ok := v.(lua.LString); ok {
		if n, ok := parseNumber(string(text), 10); ok {
			v = lua.LNumber(n)
		} else {
			vm.RaiseError("attempt to perform arithmetic on a string value")
		}
	}
	vm.Push(v)
	return 1
}

// withNumbers returns a function whose arguments are numbers, also where they were texts.
func withNumbers(f lua.LGFunction) lua.LGFunction {
	return func(vm *lua.LState) int {
		for i := 1; i <= vm.GetTop(); i++ {
			if text, ok := vm.Get(i).(lua.LString); ok {
				n, ok := parseNumber(string(text), 10)
				if !ok {
					vm.RaiseError("bad argument #%d (number expected, got string)", i)
				}
				vm.Replace(i, lua.LNumber(n))
			}
		}
		return f(vm)
	}
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
		s.mustText(vm, int64(2*(len(text)+len(between)))) // a builder grows
		b.WriteString(text)
		if i < to {
			b.WriteString(between)
		}
	}
	vm.Push(lua.LString(b.String()))
	return 1
}

func (s *state) tableInsert(vm *lua.LState) int {
	t := ownTable(vm, 1)
	switch vm.GetTop() {
	case 2:
		t.RawSetInt(t.Len()+1, vm.Get(2))
	case 3:
		at := vm.CheckInt(2)
		if at < 1 || at > t.Len()+1 {
			vm.RaiseError("bad argument #2 to 'insert' (position out of bounds)")
		}
		for i := t.Len(); i >= at; i-- {
			t.RawSetInt(i+1, t.RawGetInt(i))
		}
		t.RawSetInt(at, vm.Get(3))
	default:
		vm.RaiseError("wrong number of arguments to 'insert'")
	}
	s.meter.look()
	return 0
}

func (s *state) tableRemove(vm *lua.LState) int {
	t := ownTable(vm, 1)
	n := t.Len()
	at := vm.OptInt(2, n)
	if at < 1 || at > n {
		return 0
	}
	removed := t.RawGetInt(at)
	for i := at; i < n; i++ {
		t.RawSetInt(i, t.RawGetInt(i+1))
	}
	t.RawSetInt(n, lua.LNil)
	s.meter.look()
	vm.Push(removed)
	return 1
}
