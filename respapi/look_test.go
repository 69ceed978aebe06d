package respapi_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// Reads of a pipeline are answered in their order, also where one of them waits for a write of its
// key.
func TestReadsWaitForAWriteInTheirOrder(t *testing.T) {
	ledger := func() recovery.Ledger { return slowLedger{memledger.New(), time.Second} }
	inBubbleOn(t, ledger, func(t *testing.T, r *rig, w *wire) {
		w.ask("+OK", "SET", "a", "old", "EX", "100")
		w.ask("+OK", "SET", "b c", "beside", "EX", "100") // which is not its own id
		changed := make(chan error)
		go func() {
			_, err := r.scheduler.Reschedule(t.Context(), "a", tasks.Move{Payload: []byte("newer")})
			changed <- err
		}()
		synctest.Wait()
		w.send("GET 'b c'\r\nGET a\r\nGET none\r\nSTRLEN a\r\nTTL 'b c'\r\nGET a b\r\nGET 'b c'\r\n")
		var got []string
		for range 7 {
			got = append(got, w.answer())
		}
		want := "beside|newer|$-1|:5|:98|-ERR wrong number of arguments for 'get' command|beside"
		if all := strings.Join(got, "|"); all != want {
			t.Errorf("the answers are %s, want %s", all, want)
		}
		if err := <-changed; err != nil {
			t.Error(err)
		}
		w.ask("-WRONGTYPE Operation against a key holding the wrong kind of value", "GET", "expired:t")
	})
}
