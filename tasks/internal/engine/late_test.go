package engine_test

import (
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A call that has waited for the ledger for as long as it may, and has begun no write, is refused:
// it is no error of an unknown kind.
func TestLateWithoutAWrite(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		ctx, cancel := r.Engine().Within(t.Context())
		defer cancel()
		rig.Want(t, "RestWithin", r.Engine().RestWithin(ctx, time.Hour), ErrUnavailable)
	})
}
