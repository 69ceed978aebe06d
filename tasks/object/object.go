package object

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/tasks/task"
)

// An Object is a delivery object that is being read. The caller reads every field that it knows,
// and then calls Err.
type Object struct {
	fields map[string]json.RawMessage
	known  []string
	faults []task.FieldError
}

// Parse begins to read a JSON object; the scheduler has checked that it is one.
func Parse(settings json.RawMessage) *Object {
	o := &Object{}
	if err := json.Unmarshal(settings, &o.fields); err != nil {
		o.Fault("", "must be a JSON object")
	}
	return o
}

// Fault notes what is wrong with a field.
func (o *Object) Fault(field, problem string) {
	o.faults = append(o.faults, task.FieldError{Field: field, Problem: problem})
}

// Has reports whether a field was given.
func (o *Object) Has(field string) bool {
	_, given := o.fields[field]
	return given
}

// Text returns a field that is a text, or def if it was not given. valid may be nil;
// problem says what the field must be.
func (o *Object) Text(field, def, problem string, valid func(string) bool) string {
	return read(o, field, def, problem, valid)
}

// Int returns a field that is a whole number from low to high, or def if it was not
// given.
func (o *Object) Int(field string, low, high, def int64) int64 {
	problem := fmt.Sprintf("must be a whole number from %d to %d", low, high)
	return read(o, field, def, problem, func(v int64) bool { return v >= low && v <= high })
}

// Patterns returns a field that is a list of up to 100 names, each of which may end with an
// asterisk that stands for any end; nil if it was not given.
func (o *Object) Patterns(field string) []string {
	problem := "must be a list of up to 100 names, or beginnings of names and an asterisk"
	list := read(o, field, nil, problem, func(v []string) bool {
		return len(v) <= 100 && !slices.ContainsFunc(v, func(p string) bool { return !Name(p) })
	})
	if list == nil && o.Has(field) {
		list = []string{} // a fault was noted, or it is empty: none
	}
	return list
}

// Matches reports whether a name has one of the patterns. nil stands for all names.
func Matches(patterns []string, name string) bool {
	return patterns == nil || slices.ContainsFunc(patterns, func(p string) bool {
		start, many := strings.CutSuffix(p, "*")
		return p == name || many && strings.HasPrefix(name, start)
	})
}

func read[T any](o *Object, field string, def T, problem string, valid func(T) bool) T {
	o.known = append(o.known, field)
	raw, given := o.fields[field]
	if !given {
		return def
	}
	var v *T // null is no value
	if err := json.Unmarshal(raw, &v); err != nil || v == nil || valid != nil && !valid(*v) {
		o.Fault(field, problem)
		return def
	}
	return *v
}

// Err is a *task.InvalidError that names all faults, or nil.
func (o *Object) Err() error {
	known := slices.Sorted(slices.Values(o.known))
	for _, field := range slices.Sorted(maps.Keys(o.fields)) {
		if !slices.Contains(known, field) {
			o.Fault(Shown(field), "is not known here; the fields are "+strings.Join(known, ", "))
		}
	}
	if len(o.faults) == 0 {
		return nil
	}
	return &task.InvalidError{Fields: o.faults}
}

// Shown is the printable part of an unknown field's name: a request may have any text as a name.
func Shown(field string) string {
	const most = 32 // shorter than a secret
	bad := func(r rune) bool {
		return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}
	if field == "" || len(field) > most || strings.ContainsFunc(field, bad) {
		return "(a field)"
	}
	return field
}

// Name reports whether a text can be the name of a key or channel in Redis: 1 to 512 bytes of UTF-8
// without control characters or spaces.
func Name(s string) bool {
	bad := func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' }
	return s != "" && len(s) <= 512 && !strings.ContainsFunc(s, bad)
}
