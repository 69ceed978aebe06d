package member

import (
	"context"
	"errors"
	"testing"
)

// A batch waits for its turn no longer than its context lasts.
func TestTurnWithin(t *testing.T) {
	s := new(Member).newShard("node", 0)
	if err := s.lockTurn(t.Context()); err != nil || s.turn.TryLock() {
		t.Errorf("the first: %v; or a second has the turn beside it", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.lockTurn(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the second: %v", err)
	}
	s.turn.Unlock()
	if !s.turn.TryLock() {
		t.Error("the turn is not free")
	}
}
