package dispatch

import "container/list"

// Reservers are the receivers that wait for a topic's tasks, first come, first served.
type Reservers struct {
	Queue list.List // of sleeping receivers
	Local int       // of those, receivers of this node
	Woken int       // receivers that were woken and have not looked yet
	last  uint64    // the last number drawn
}

// A Turn is one waiting receiver. It keeps its number for as long as it waits: a receiver that
// was woken too late, because another had been faster, keeps its place in the queue.
type Turn struct {
	Number uint64 // drawn when it joins for the first time
	Ready  chan struct{}
	Place  *list.Element // while it sleeps

	Serve func() // of receivers of another node: it becomes an Action, instead of closing Ready
	Owner any    // the receiver of this node whose turn it is

	// Of others:
	Limit int  // how many tasks it takes
	Want  Sum  // shared with other sleeping receivers: how many tasks all take; may be nil
	Given bool // it was woken by Give
}

// A Sum is read without the lock of the engine.
type Sum interface{ Add(n int64) int64 }

// Join puts a receiver to sleep at the place that its number gives it.
func (r *Reservers) Join(t *Turn) {
	if t.Number == 0 {
		r.last++
		t.Number = r.last
	}
	t.Ready = make(chan struct{})
	before := r.Queue.Back()
	for before != nil && before.Value.(*Turn).Number > t.Number {
		before = before.Prev()
	}
	if before == nil {
		t.Place = r.Queue.PushFront(t)
	} else {
		t.Place = r.Queue.InsertAfter(t, before)
	}
	if t.Serve == nil {
		r.Local++
	}
	if t.Want != nil {
		t.Want.Add(int64(t.Limit))
	}
}

// remove takes a sleeping receiver out of the queue.
func (r *Reservers) remove(t *Turn) {
	r.Queue.Remove(t.Place)
	t.Place = nil
	if t.Serve == nil {
		r.Local--
	}
	if t.Want != nil {
		t.Want.Add(int64(-t.Limit))
	}
}

// Give wakes a sleeping receiver that has been given deliveries of another node.
func (r *Reservers) Give(t *Turn) {
	r.remove(t)
	t.Given = true
	close(t.Ready)
}

// Leave is called by every receiver that has joined, woken or not.
func (r *Reservers) Leave(t *Turn) {
	switch {
	case t.Place != nil:
		r.remove(t)
	case !t.Given:
		r.Woken--
	}
}

// Wake wakes the receiver that has waited longest, and returns its turn. It returns nil if none
// sleeps, or as many have been woken and have not looked yet as there are ready tasks.
func (r *Reservers) Wake(tasks int) *Turn {
	front := r.Queue.Front()
	if front == nil || r.Woken >= tasks {
		return nil
	}
	t := front.Value.(*Turn)
	r.remove(t)
	r.Woken++
	if t.Serve == nil {
		close(t.Ready)
	}
	return t
}

// remoteInFront reports whether the receiver that has waited longest waits at another node.
func (r *Reservers) remoteInFront() bool {
	front := r.Queue.Front()
	return front != nil && front.Value.(*Turn).Serve != nil
}
