package edge

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func callersOf(t *testing.T, tokens ...Token) *Callers {
	t.Helper()
	s, err := NewCallers(tokens)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Callers) set(t *testing.T, tokens ...Token) {
	t.Helper()
	if err := s.Set(tokens); err != nil {
		t.Fatal(err)
	}
}

// A caller lives as long as its token has the same rights. Others do not notice its end.
func TestLife(t *testing.T) {
	a, b := tokenOf("a", ScopeRead), tokenOf("b", ScopeSchedule)
	s := callersOf(t, a, b)
	first, other := s.Find(a.SHA256), s.Find(b.SHA256)
	s.set(t, b, a) // in another order
	if first.Withdrawn() || s.Find(a.SHA256) != first || s.Now(first) != first {
		t.Error("a caller has ended whose token has not changed")
	}
	a.MaxPending, a.Scopes = 5, []Scope{ScopeSchedule}
	s.set(t, a, b)
	now := s.Now(first)
	if cause := context.Cause(first.Life()); !errors.Is(cause, ErrWithdrawn) {
		t.Errorf("the caller with the rights before ends with %v", cause)
	}
	if now == nil || now == first || now.Rights != MaySchedule || now.Grant.MaxPending != 5 || now.Withdrawn() {
		t.Errorf("the token is that of %+v", now)
	}
	s.set(t, b)
	if s.Now(first) != nil || s.Now(now) != nil || s.Find(a.SHA256) != nil || !now.Withdrawn() || other.Withdrawn() {
		t.Error("a token that was removed has a caller")
	}
	for _, bad := range [][]Token{nil, {}, {tokenOf("")}} {
		if s.Set(bad) == nil {
			t.Errorf("%v was accepted", bad)
		}
		if _, err := NewCallers(bad); err == nil {
			t.Errorf("a server that no caller can use was made of %v", bad)
		}
	}
	if s.Find(b.SHA256) != other || other.Withdrawn() {
		t.Error("tokens that were refused have replaced others")
	}
}

func TestOnRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := tokenOf("a", ScopeRead), tokenOf("b", ScopeRead)
		s := callersOf(t, a, b)
		var removed, stopped atomic.Int32
		first := s.Find(a.SHA256)
		s.OnRemoval(first, func() { removed.Add(1) })
		stop := s.OnRemoval(first, func() { stopped.Add(1) })
		for _, scope := range []Scope{ScopeAdmin, ScopeReceive} {
			a.Scopes = []Scope{scope}
			s.set(t, a, b)
			if synctest.Wait(); removed.Load() != 0 {
				t.Fatal("it was called for a token that has other rights")
			}
		}
		stop()
		s.set(t, b)
		if synctest.Wait(); removed.Load() != 1 || stopped.Load() != 0 {
			t.Errorf("called %d times, and %d after its stop", removed.Load(), stopped.Load())
		}
		s.OnRemoval(first, func() { removed.Add(1) })()
		if removed.Load() != 2 {
			t.Error("it was not called for a token that is none any more")
		}
	})
}

// Once stop has returned, nothing runs any more: the connection may have another caller then.
func TestStopWaits(t *testing.T) {
	a, b := tokenOf("a", ScopeRead), tokenOf("b", ScopeRead)
	s := callersOf(t, a, b)
	began, goOn := make(chan struct{}), make(chan struct{})
	finished := false
	stop := s.OnRemoval(s.Find(a.SHA256), func() {
		close(began)
		<-goOn
		finished = true
	})
	s.set(t, b)
	<-began
	go close(goOn)
	if stop(); !finished {
		t.Error("stop has returned while the function runs")
	}
}

func TestRights(t *testing.T) {
	r := RightsOf([]Scope{ScopeRead, ScopeSchedule})
	if !r.Open(MayRead|MayReceive) || r.Open(MayReceive) || r.Open(0) || !MayAdmin.Open(0) || !MayAdmin.Open(MayReceive) {
		t.Error("wrong rights")
	}
	if text := (r | MayAdmin).String(); text != "schedule or read" {
		t.Error(text)
	}
	if text := MayAdmin.String(); text != "admin" {
		t.Error(text)
	}
}

// A ticket serves the token that it was made of, until its end.
func TestTickets(t *testing.T) {
	a, b := tokenOf("a", ScopeRead), tokenOf("b", ScopeRead)
	s := callersOf(t, a, b)
	now := time.Now()
	begun := s.Find(a.SHA256).Begin("secret-a", now.Add(time.Hour))
	if opened := s.Open(begun.Ticket, now); opened == nil || opened.Caller.Name != "a" || !opened.Proves(begun.Proof()) || opened.Proves("") {
		t.Errorf("it opens %+v", opened)
	}
	forged := s.Find(a.SHA256).Begin("secret-b", now.Add(time.Hour))
	if s.Open(begun.Ticket, now.Add(time.Hour)) != nil || s.Open(forged.Ticket, now) != nil || s.Open("a."+begun.Ticket, now) != nil {
		t.Error("a ticket has opened that should not")
	}
	a.SHA256 = DigestOf("another")
	if s.set(t, a, b); s.Open(begun.Ticket, now) != nil {
		t.Error("the ticket of a token that was replaced has opened")
	}
}
