package respapi_test

import (
	"fmt"
	"net"
	"testing"

	. "github.com/lapsehq/lapse/respapi"
)

// TestStreamBlockedReaders has many readers wait, and bounds what one of them takes up.
func TestStreamBlockedReaders(t *testing.T) {
	n := 3000
	if testing.Short() {
		n = 300
	}
	r := newRig(t, Config{MaxConnections: n + 10}, withWays())
	w := r.dial()
	w.ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$", "MKSTREAM")
	before := inUse()
	all := make([]net.Conn, n)
	for i := range all {
		all[i] = connectTo(t, r.addr)
		fmt.Fprintf(all[i], "XREADGROUP GROUP g c%d BLOCK 0 STREAMS expired:t >\r\n", i)
	}
	waitFor(t, "the readers wait", func() bool { return r.counts().Receivers == int64(n) })
	each := (inUse() - before) / int64(n) // below 0 if what came before was larger
	t.Logf("a reader that waits takes up %d bytes, with the client's side", each)
	if most := int64(32 << 10); each > most {
		t.Errorf("a reader that waits takes up %d bytes, want at most %d", each, most)
	}
	r.expire("t", "k", 1)
	for _, nc := range all {
		nc.Close()
	}
	waitFor(t, "no reader waits", func() bool { return r.counts().Receivers == 0 })
}
