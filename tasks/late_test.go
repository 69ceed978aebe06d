package tasks_test

import (
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
)

// A call that has waited for the ledger for as long as it may, and has begun no write, is refused:
// it is no error of an unknown kind.
func TestLateWithoutAWrite(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		ctx, cancel := r.Engine().Within(t.Context())
		defer cancel()
		want(t, "RestWithin", r.Engine().RestWithin(ctx, time.Hour), ErrUnavailable)
	})
}
