package task

import (
	"cmp"
	"reflect"
	"sync"
	"time"
	"unsafe"
)

// How the figures of several nodes become those of all of them: counts add up, and of what is no
// count the one that an operator must see remains.

// Add adds the figures of another node to those of this one. Of the last full sweep of each node,
// the one that began first remains.
func (f *Figures) Add(o *Figures) {
	addUp(f, o)
	if at := earlier(f.FullSweepAt, o.FullSweepAt); !at.Equal(f.FullSweepAt) {
		f.FullSweepAt, f.FullSweepTook = at, o.FullSweepTook
	}
}

// Add adds what the topic is doing at another node. The settings stay; the last error becomes the
// later one, and ConcurrencyNow the greater one.
func (t *Topic) Add(o *Topic) {
	t.Counts.Add(&o.Counts)
	t.ConcurrencyNow = max(t.ConcurrencyNow, o.ConcurrencyNow)
	if t.Undeliverable == "" {
		t.Undeliverable = o.Undeliverable
	}
	if o.LastFailed.After(t.LastFailed) {
		t.LastError, t.LastFailed = o.LastError, o.LastFailed
	}
}

// Add adds the forecast of another node. Both must begin at the same time and have the same steps.
func (f *Forecast) Add(o *Forecast) {
	for i := range min(len(f.Counts), len(o.Counts)) {
		f.Counts[i] += o.Counts[i]
	}
	f.Ready += o.Ready
	f.ReadyPaused += o.ReadyPaused
	f.Delivering += o.Delivering
	f.Later += o.Later
	f.Held += o.Held
	f.Complete = f.Complete && o.Complete
}

// addUp adds the figures of o to those of f, a struct: numbers are added, of two times that are not
// zero the earlier one remains, and of two texts the first that is not empty. A field's tag fleet
// can say otherwise: of two numbers the greater one remains (max), or the field stays (own).
func addUp[T any](f, o *T) {
	p := planOf(reflect.TypeFor[T]())
	to, from := unsafe.Pointer(f), unsafe.Pointer(o)
	for _, at := range p.ints {
		*(*int)(unsafe.Add(to, at)) += *(*int)(unsafe.Add(from, at))
	}
	for _, at := range p.int64s {
		*(*int64)(unsafe.Add(to, at)) += *(*int64)(unsafe.Add(from, at))
	}
	for _, at := range p.most {
		n := (*int)(unsafe.Add(to, at))
		*n = max(*n, *(*int)(unsafe.Add(from, at)))
	}
	for _, at := range p.most64 {
		n := (*int64)(unsafe.Add(to, at))
		*n = max(*n, *(*int64)(unsafe.Add(from, at)))
	}
	for _, at := range p.times {
		t := (*time.Time)(unsafe.Add(to, at))
		*t = earlier(*t, *(*time.Time)(unsafe.Add(from, at)))
	}
	for _, at := range p.texts {
		t := (*string)(unsafe.Add(to, at))
		*t = cmp.Or(*t, *(*string)(unsafe.Add(from, at)))
	}
}

// A plan says where the figures of a type are, by the way in which they add up: topics are added up
// under the lock, and there may be a million of them.
type plan struct{ ints, int64s, most, most64, times, texts []uintptr }

var plans sync.Map // of *plan, by type

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	p := new(plan)
	p.enter(t, 0, "")
	plans.Store(t, p)
	return p
}

func (p *plan) enter(t reflect.Type, at uintptr, how string) {
	add := func(all *[]uintptr) { *all = append(*all, at) }
	switch {
	case how == "own":
	case t == reflect.TypeFor[time.Time]():
		add(&p.times)
	case t.Kind() == reflect.String:
		add(&p.texts)
	case t.Kind() == reflect.Int && how == "max":
		add(&p.most)
	case t.Kind() == reflect.Int:
		add(&p.ints)
	case t.Kind() == reflect.Int64 && how == "max":
		add(&p.most64)
	case t.Kind() == reflect.Int64:
		add(&p.int64s)
	case t.Kind() == reflect.Array:
		for i := range t.Len() {
			p.enter(t.Elem(), at+uintptr(i)*t.Elem().Size(), how)
		}
	case t.Kind() == reflect.Struct:
		for f := range t.Fields() {
			p.enter(f.Type, at+f.Offset, f.Tag.Get("fleet"))
		}
	default:
		panic("task: no figure: " + t.String())
	}
}

// earlier returns the earlier one of two times, of which a zero one does not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
