package script

import (
	"sort"

	lua "github.com/yuin/gopher-lua"
)

// A sorting is a table that is sorted.
type sorting struct {
	state  *state
	vm     *lua.LState
	values []lua.LValue
	before *lua.LFunction // nil: by the operator <
	spent  int            // bytes that were compared since the last look at the time
}

// spend looks at the time once much was compared. Beyond the bound, the script ends.
func (o *sorting) spend(bytes int) {
	if o.spent += bytes; o.spent < 1<<20 {
		return
	}
	o.spent = 0
	if o.state.meter.look(); o.state.meter.failed != nil {
		o.vm.RaiseError("%s", o.state.meter.failed.Error())
	}
}

func (o *sorting) Len() int      { return len(o.values) }
func (o *sorting) Swap(i, j int) { o.values[i], o.values[j] = o.values[j], o.values[i] }

func (o *sorting) Less(i, j int) bool {
	a, b := o.values[i], o.values[j]
	if o.before != nil {
		o.vm.Push(o.before)
		o.vm.Push(a)
		o.vm.Push(b)
		o.vm.Call(2, 1)
		less := o.vm.ToBool(-1)
		o.vm.Pop(1)
		return less
	}
	switch a := a.(type) {
	case lua.LNumber:
		if b, ok := b.(lua.LNumber); ok {
			o.spend(64)
			return a < b
		}
	case lua.LString:
		if b, ok := b.(lua.LString); ok {
			o.spend(64 + min(len(a), len(b)))
			return a < b
		}
	}
	o.vm.RaiseError("attempt to compare %s with %s", a.Type(), b.Type())
	return false
}

// tableSort is table.sort.
func (s *state) tableSort(vm *lua.LState) int {
	t := ownTable(vm, 1)
	o := sorting{state: s, vm: vm, values: make([]lua.LValue, t.Len())}
	if vm.GetTop() > 1 {
		o.before = vm.CheckFunction(2)
	}
	s.mustTake(vm, int64(len(o.values))*valueMemory)
	for i := range o.values {
		o.values[i] = t.RawGetInt(i + 1)
	}
	sort.Sort(&o)
	for i, v := range o.values {
		t.RawSetInt(i+1, v)
	}
	s.meter.look()
	return 0
}
