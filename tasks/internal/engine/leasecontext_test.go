package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What package context does with a context of another make works as with its own.
func TestLeaseContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		parent, stop := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		defer stop()
		fresh := func(d time.Duration) *leaseContext {
			return &leaseContext{parent: parent, deadline: time.Now().Add(d)}
		}

		c := fresh(time.Second)
		child, cancel := context.WithCancel(c)
		defer cancel()
		if c.Err() != nil || child.Err() != nil || c.Value(key{}) != "v" || child.Value(key{}) != "v" {
			t.Errorf("at first: %v, %v, %v", c.Err(), child.Err(), c.Value(key{}))
		}
		if deadline, ok := child.Deadline(); !ok || !deadline.Equal(time.Now().Add(time.Second)) {
			t.Errorf("deadline %s", deadline)
		}
		<-child.Done()
		if !errors.Is(c.Err(), context.DeadlineExceeded) || !errors.Is(child.Err(), context.DeadlineExceeded) {
			t.Errorf("after the lease: %v, %v", c.Err(), child.Err())
		}
		c.end()

		c = fresh(time.Hour)
		child, cancel = context.WithTimeout(c, time.Minute)
		defer cancel()
		c.end()
		<-child.Done()
		if !errors.Is(c.Err(), context.Canceled) || !errors.Is(child.Err(), context.Canceled) {
			t.Errorf("after the attempt: %v, %v", c.Err(), child.Err())
		}

		c = fresh(time.Hour)
		c.end()
		if <-c.Done(); !errors.Is(c.Err(), context.Canceled) {
			t.Errorf("asked after the attempt: %v", c.Err())
		}

		if c = fresh(-time.Second); !errors.Is(c.Err(), context.DeadlineExceeded) {
			t.Errorf("asked after the lease: %v", c.Err())
		}
		c.end()

		c = fresh(time.Hour)
		called := make(chan struct{})
		context.AfterFunc(c, func() { close(called) })
		stop()
		<-called
		if !errors.Is(c.Err(), context.Canceled) {
			t.Errorf("after the end of the scheduler: %v", c.Err())
		}
		c.end()
	})
}
