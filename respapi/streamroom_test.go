package respapi_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// An acknowledgement that the ledger has no room for is no success: XACK answers 1 once it is
// recorded.
func TestAckWithoutRoom(t *testing.T) {
	var faulty *ledgertest.Faulty
	wrapped := func() recovery.Ledger {
		faulty = ledgertest.Wrap(memledger.New())
		return faulty
	}
	inBubbleOn(t, wrapped, func(t *testing.T, r *rig, w *wire) {
		_, err := r.scheduler.Admin().ChangeTopic(t.Context(), "t", -1, func(s *tasks.TopicSettings) error {
			s.KeepFinished = time.Hour
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r.expire("t", "a", 1)
		id := w.read("c", 1)[0]
		faulty.SetCondition(fmt.Errorf("%w: %w", recovery.ErrFull, recovery.ErrReserveUsed))
		time.Sleep(time.Second)
		for range 2 {
			w.ask("-UNKNOWN done, but not recorded yet: the ledger does not answer or has no room", "XACK", "expired:t", "g", id)
		}
		faulty.SetCondition(nil)
		time.Sleep(time.Second)
		w.ask(":1", "XACK", "expired:t", "g", id)
	})
}
