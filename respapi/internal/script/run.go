package script

import (
	"context"
	"errors"
	"strings"
	"sync"

	lua "github.com/yuin/gopher-lua"

	"github.com/lapsehq/lapse/respapi/internal/resp"
)

// A Host is what a script is run for.
type Host interface {
	// Call runs a command of the script. It returns the answer in version 2 of the protocol, which
	// holds until the next call.
	Call(args [][]byte) []byte
	// Take counts bytes that the script takes while it runs. Error: there is no room for them.
	Take(bytes int64) error
	// Log keeps a line that the script has for the log.
	Log(text string)
}

// A state is an interpreter with the library. No script can change what the next one finds in it.
type state struct {
	lua    *lua.LState
	meter  *meter       // of the run; nil: there is none
	hidden []lua.LValue // the functions of rewrite, in the order of their names
	depth  int          // of pcall
}

var states = sync.Pool{New: func() any { return newState() }}

// Sizes of an interpreter.
const (
	callDepth    = 250      // calls within calls
	catchDepth   = 16       // pcall within pcall
	registerRoom = 256      // values at first
	mostRegister = 8 * 1024 // values; they bound what unpack returns
)

func newState() *state {
	s := &state{lua: lua.NewState(lua.Options{
		SkipOpenLibs: true, MinimizeStackMemory: true, CallStackSize: callDepth,
		RegistrySize: registerRoom, RegistryMaxSize: mostRegister, RegistryGrowStep: registerRoom,
	})}
	s.open()
	for _, f := range []lua.LGFunction{s.runConcat, s.runSlot, s.runMany, s.runNumber} {
		s.hidden = append(s.hidden, s.lua.NewFunction(f))
	}
	return s
}

// An Error is how a script ends that has failed.
type Error struct {
	Answer string // as Redis gives it, which begins with a code
	Bound  error  // the bound, or the error of the host, that has ended it; nil: it did so itself
}

func (e *Error) Error() string { return e.Answer }
func (e *Error) Unwrap() error { return e.Bound }

// Run runs the script with its keys and arguments, and writes what it returns to out. Error: an
// *Error, and out is as it was.
func (s *Script) Run(ctx context.Context, keys, args [][]byte, host Host, out *resp.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, MostTime)
	defer cancel()
	st := states.Get().(*state)
	m := &meter{Context: ctx, host: host}
	st.meter = m
	from := len(out.Buf)
	err = st.run(s, keys, args, out)
	if m.failed != nil {
		err = &Error{"ERR " + m.failed.Error() + "; nothing was done", m.failed}
	}
	if err != nil {
		out.Buf = out.Buf[:from]
	}
	// What a large script has needed is not kept.
	if st.meter = nil; m.steps < MostSteps/10 && m.texts < MostMemory/64 && m.failed == nil {
		st.lua.RemoveContext()
		states.Put(st)
	}
	return err
}

func (s *state) run(script *Script, keys, args [][]byte, out *resp.Writer) (err error) {
	defer func() {
		if r := recover(); r != nil { // a fault of the interpreter
			err = failure(r)
			s.meter.fail(err)
		}
	}()
	vm := s.lua
	vm.SetContext(s.meter)
	vm.SetTop(0)
	vm.Push(vm.NewFunctionFromProto(script.proto))
	for _, f := range s.hidden {
		vm.Push(f)
	}
	vm.Push(s.texts(keys))
	vm.Push(s.texts(args))
	if s.meter.failed != nil {
		return s.meter.failed
	}
	if err := vm.PCall(len(s.hidden)+2, 1, nil); err != nil {
		var failed *lua.ApiError
		if !errors.As(err, &failed) {
			return &Error{Answer: "ERR " + err.Error()}
		}
		return &Error{Answer: script.told(failed.Object)}
	}
	returned := vm.Get(-1)
	vm.SetTop(0)
	a := answerer{meter: s.meter, out: out}
	a.write(returned, 0)
	return s.meter.failed
}

// told returns what the client gets for the error that a script has raised: its text, and where
// that was, as far as it is known.
func (s *Script) told(raised lua.LValue) string {
	text, line := "ERR "+raised.String(), ""
	if t, ok := raised.(*lua.LTable); ok {
		text = errorAnswer(t.RawGetString("err").String())
		line = t.RawGetString(lineField).String()
	}
	if rest, ok := strings.CutPrefix(text, "ERR "+chunkName+":"); ok && line == "" {
		line, _, _ = strings.Cut(rest, ":")
	}
	text += " script: " + s.Digest
	if line != "" && line != "nil" {
		text += ", on @" + chunkName + ":" + line + "."
	}
	return text
}

// lineField is where the error of a command has the line of its call.
const lineField = "line"

func failure(r any) error {
	if err, ok := r.(error); ok {
		return err
	}
	return boundError("the interpreter has failed")
}

// texts returns a table of texts.
func (s *state) texts(list [][]byte) *lua.LTable {
	t := s.lua.CreateTable(len(list), 0)
	for _, b := range list {
		if !s.meter.text(int64(len(b)) + stepMemory/16) {
			break
		}
		t.Append(lua.LString(b))
	}
	return t
}

// errorAnswer returns what the client gets for the text of an error, without the dash before it.
func errorAnswer(text string) string {
	if text = strings.TrimPrefix(text, "-"); text == "" {
		return "ERR unknown error"
	}
	return text
}
