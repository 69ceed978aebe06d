package lifetime

import (
	"errors"
	"testing"
)

// Once Close has begun, nothing is counted that it would not wait for.
func TestNothingIsCountedAtTheEnd(t *testing.T) {
	var l Lifetime
	l.Begin(t.Context())
	ran := make(chan bool, 2)
	if !l.Enter() || !l.Handle(func() { ran <- true }) || !l.Go(func() { ran <- true }) {
		t.Fatal("nothing runs before the end")
	}
	l.Handlers.Done()
	l.End()
	if l.Enter() || l.Handle(func() {}) || l.Go(func() {}) {
		t.Error("something is counted at the end")
	}
	l.Handlers.Wait()
	l.Background.Wait()
	if len(ran) != 2 {
		t.Errorf("%d of 2 have run", len(ran))
	}
}

// All callers of Close get what the first one has found, once it is over.
func TestCloseOnce(t *testing.T) {
	var l Lifetime
	l.Begin(t.Context())
	first, begun, goOn := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		first <- l.Close(func() error { close(begun); <-goOn; return errors.New("torn") })
	}()
	<-begun
	close(goOn)
	err := l.Close(func() error { t.Error("it shuts down again"); return nil })
	if want := <-first; err == nil || !errors.Is(err, want) {
		t.Errorf("%v, and then %v", want, err)
	}
	<-l.Done
	l.Finish()
}
