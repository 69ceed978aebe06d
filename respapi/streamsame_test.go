package respapi_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// TestStreamsAsRedis compares answers with those of a real Redis server that has the same entries.
func TestStreamsAsRedis(t *testing.T) {
	t.Parallel()
	addr := redistest.Start(t).Addr
	for _, version := range []string{"2", "3"} {
		t.Run(version, func(t *testing.T) {
			r, ours := streamRig(t)
			theirs := connect(t, addr)
			theirs.got("FLUSHALL")
			theirs.ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$", "MKSTREAM")
			for _, w := range []*wire{ours, theirs} {
				w.got("HELLO", version)
			}
			for _, c := range failing {
				sameAnswer(t, ours, theirs, strings.Fields(c))
			}
			r.expire("t", "k", 5)
			mine := ours.got("XREADGROUP", "GROUP", "g", "a", "COUNT", "4", "STREAMS", "expired:t", ">")
			ids := idsOf(mine)
			for i, id := range ids {
				theirs.got("XADD", "expired:t", id, "key", "k"+string(rune('0'+i)), "value", "v", "topic", "t", "due", id[:12], "attempt", "1")
			}
			if got := theirs.got("XREADGROUP", "GROUP", "g", "a", "COUNT", "4", "STREAMS", "expired:t", ">"); got != mine {
				t.Fatalf("the answer is %q, that of Redis %q", mine, got)
			}
			for _, c := range working {
				for i, id := range ids {
					c = strings.ReplaceAll(c, "ID"+string(rune('0'+i)), id)
				}
				sameAnswer(t, ours, theirs, strings.Fields(c))
			}
		})
	}
}

// idle is how long an entry has been idle, in XPENDING.
var idle = regexp.MustCompile(`:\d+ (:\d+)`)

// sameAnswer compares the answers to a command.
func sameAnswer(t *testing.T, ours, theirs *wire, command []string) {
	t.Helper()
	got, want := ours.got(command...), theirs.got(command...)
	if strings.EqualFold(command[0], "xpending") && len(command) > 3 {
		got, want = idle.ReplaceAllString(got, "idle $1"), idle.ReplaceAllString(want, "idle $1")
	}
	if got != want {
		t.Errorf("%q: the answer is\n%q, that of Redis\n%q", command, got, want)
	}
}

// failing are commands that find nothing, or are wrong.
var failing = []string{
	"XGROUP", "XGROUP FOO", "XGROUP CREATE", "XGROUP HELP", "XINFO HELP", "XINFO", "XINFO FOO a",
	"XGROUP CREATE expired:t g $", "XGROUP CREATE expired:t h abc", "XGROUP CREATE expired:t h 0 FOO",
	"XGROUP CREATE expired:none h 0", "XGROUP CREATE expired:t g 0 ENTRIESREAD x", "XGROUP CREATE expired:t g 0 ENTRIESREAD -5",
	"XGROUP SETID expired:none g 0", "XGROUP SETID expired:t g abc", "XGROUP SETID expired:t g 0", "XGROUP SETID expired:t g $",
	"XGROUP DESTROY expired:none g", "XGROUP CREATECONSUMER expired:none g c", "XGROUP DELCONSUMER expired:none g c",
	"XGROUP CREATECONSUMER expired:t g x", "XGROUP CREATECONSUMER expired:t g x", "XGROUP DELCONSUMER expired:t g x", "XGROUP DELCONSUMER expired:t g x",

	"XREADGROUP GROUP g c STREAMS expired:t", "XREADGROUP GROUP g c STREAMS expired:t >", "XREADGROUP GROUP g c STREAMS expired:t expired:t >",
	"XREADGROUP GROUP g c STREAMS expired:none >", "XREADGROUP GROUP g c STREAMS none >", "XREADGROUP GROUP g c STREAMS expired:t $",
	"XREADGROUP GROUP g c STREAMS expired:t abc", "XREADGROUP GROUP g c STREAMS expired:t 1-x", "XREADGROUP GROUP g c STREAMS expired:t 0",
	"XREADGROUP GROUP g c BLOCK x STREAMS expired:t >", "XREADGROUP GROUP g c BLOCK -1 STREAMS expired:t >", "XREADGROUP GROUP g c BLOCK 1 STREAMS expired:t >",
	"XREADGROUP GROUP g c COUNT x STREAMS expired:t >", "XREADGROUP GROUP g c COUNT -1 STREAMS expired:t >", "XREADGROUP FOO g c BLOCK 1 STREAMS expired:t >",
	"XREADGROUP COUNT 1 BLOCK 1 STREAMS expired:t >", "XREADGROUP GROUP g c COUNT 1 NOACK BLOCK 5", "XREADGROUP GROUP g c NOACK STREAMS expired:t >",
	"XREADGROUP GROUP g c STREAMS expired:t expired:none > >", "XREADGROUP GROUP g c STREAMS expired:t expired:t 0 >",
	"MULTI", "XREADGROUP GROUP g c BLOCK 0 STREAMS expired:t >", "XACK expired:t g 1-1", "EXEC",

	"XACK", "XACK expired:t g 1-1", "XACK expired:t g x", "XACK expired:none g 1-1", "XACK none g 1-1", "XACK expired:t g 1-1 x",
	"XDEL expired:t", "XDEL expired:none 1-1", "XDEL expired:t x",
	"XPENDING expired:t g", "XPENDING expired:none g", "XPENDING none g", "XPENDING expired:t g - + 10", "XPENDING expired:t g - +",
	"XPENDING expired:t g x + 10", "XPENDING expired:t g - x 10", "XPENDING expired:t g - + x", "XPENDING expired:t g IDLE x - + 10",
	"XPENDING expired:t g IDLE 1 - +", "XPENDING expired:t g (18446744073709551615-18446744073709551615 + 1", "XPENDING expired:t g - (0-0 1",
	"XPENDING expired:t g - + -1", "XPENDING expired:t g - + 10 c d e f",
	"XCLAIM expired:t g c 0", "XCLAIM expired:t g c x 1-1", "XCLAIM expired:t g c 0 x", "XCLAIM expired:t g c 0 1-1", "XCLAIM expired:t g c 0 1-1 FOO",
	"XCLAIM expired:t g c 0 1-1 IDLE x", "XCLAIM expired:t g c 0 1-1 TIME x", "XCLAIM expired:t g c 0 1-1 RETRYCOUNT x", "XCLAIM expired:t g c 0 1-1 LASTID x",
	"XCLAIM expired:none g c 0 1-1", "XCLAIM none g c 0 1-1", "XCLAIM expired:t g c 0 1-1 JUSTID", "XCLAIM expired:t g c -5 1-1 JUSTID",
	"XAUTOCLAIM expired:t g c 0", "XAUTOCLAIM expired:t g c x 0", "XAUTOCLAIM expired:t g c 0 x", "XAUTOCLAIM expired:t g c 0 0", "XAUTOCLAIM expired:t g c 0 0 JUSTID",
	"XAUTOCLAIM expired:t g c 0 0 COUNT x", "XAUTOCLAIM expired:t g c 0 0 COUNT 0", "XAUTOCLAIM expired:t g c 0 0 FOO", "XAUTOCLAIM expired:none g c 0 0",
	"XAUTOCLAIM expired:t g c 0 (18446744073709551615-18446744073709551615",
	"XLEN expired:t", "XLEN expired:none", "XLEN none", "XINFO STREAM expired:none", "XINFO STREAM expired:t FOO", "XINFO STREAM expired:t FULL COUNT x",
	"XINFO GROUPS expired:none", "XINFO CONSUMERS expired:none g", "XINFO CONSUMERS expired:t", "XADD", "XTRIM a", "XRANGE a", "XREVRANGE a", "XREAD a", "XSETID a",
}

// working are commands about four entries that a consumer has.
var working = []string{
	"XPENDING expired:t g", "XPENDING expired:t g - + 10", "XPENDING expired:t g - + 2", "XPENDING expired:t g ID1 + 10", "XPENDING expired:t g (ID1 (ID3 10",
	"XPENDING expired:t g - + 10 a", "XPENDING expired:t g - + 10 b", "XPENDING expired:t g IDLE 100000 - + 10", "XPENDING expired:t g 900000000001 900000000002 10",
	"XREADGROUP GROUP g a STREAMS expired:t 0", "XREADGROUP GROUP g a COUNT 2 STREAMS expired:t ID0", "XREADGROUP GROUP g b STREAMS expired:t 0",
	"XPENDING expired:t g - + 10",
	"XCLAIM expired:t g b 100000 ID0", "XCLAIM expired:t g b 0 ID0", "XCLAIM expired:t g b 0 ID0 ID0 JUSTID", "XCLAIM expired:t g b 0 ID1 ID2 IDLE 5000 RETRYCOUNT 7",
	"XPENDING expired:t g", "XPENDING expired:t g - + 10", "XCLAIM expired:t g c 0 ID0 TIME 1 FORCE LASTID 0-0",
	"XPENDING expired:t g IDLE 4000 - + 10",
	"XAUTOCLAIM expired:t g d 4000 0 JUSTID", "XAUTOCLAIM expired:t g d 0 - COUNT 2", "XAUTOCLAIM expired:t g d 0 ID2 COUNT 1 JUSTID", "XAUTOCLAIM expired:t g e 0 (ID1",
	"XAUTOCLAIM expired:t g e 100000 0 COUNT 1",
	"XPENDING expired:t g - + 10", "XACK expired:t g ID0 ID0 5-5", "XACK expired:t g ID0", "XACK expired:t g ID1 ID2", "XPENDING expired:t g",
	"XREADGROUP GROUP g e STREAMS expired:t 0", "XACK expired:t g ID3", "XPENDING expired:t g", "XPENDING expired:t g - + 10", "XAUTOCLAIM expired:t g e 0 0",
}
