package respapi_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// apart is how far the clocks of the nodes in TestTTLsOfTwoClocks differ.
const apart = 10 * time.Hour

// A key expires by the clock of the node that owns it, whichever node is asked: what is relative is
// reckoned there, and so is what is left.
func TestTTLsOfTwoClocks(t *testing.T) {
	fleet := memfleet.New()
	var nodes []*rig
	for i, ahead := range []time.Duration{0, apart} {
		name := string(rune('a' + i))
		nodes = append(nodes, newRigOn(t, fleet.Join(name, 2), Config{}, tasks.Config{
			Node: name, Clock: func() time.Time { return time.Now().Add(ahead) },
		}))
	}
	for i, owner := range []string{"a", "b"} {
		at, other := nodes[i].dial(), nodes[1-i].dial()
		// left checks that a key of the owner expires within an hour, and not at once.
		left := func(key string) {
			t.Helper()
			for _, w := range []*wire{at, other} {
				w.command("PTTL", key)
				ms, err := strconv.ParseInt(strings.TrimPrefix(w.answer(), ":"), 10, 64)
				if err != nil || ms > time.Hour.Milliseconds() || ms < time.Hour.Milliseconds()/2 {
					t.Errorf("owner %s: %s has %d ms left, %v, want about an hour", owner, key, ms, err)
				}
			}
		}
		for n, command := range []string{
			"SET k v EX 3600", "SET k v PX 3600000 XX", "SET k v EX 3600 GET", "SETEX k 3600 v", "PSETEX k 3600000 v",
			"EXPIRE k 3600", "PEXPIRE k 3600000", "PEXPIRE k 3600000 XX", "EXPIRE k 3600 GT", "EXPIRE k 3600 LT", "GETEX k EX 3600", "GETEX k PX 3600000",
		} {
			key := fmt.Sprint(owner, n)
			before := "1000"
			if strings.HasSuffix(command, "LT") {
				before = "7200"
			}
			at.ask("+OK", "SET", key, "v", "EX", before)
			args := strings.Fields(command)
			args[1] = key
			other.command(args...)
			if got := other.answer(); got != "+OK" && got != ":1" && got != "v" {
				t.Errorf("owner %s: %s: %s", owner, command, got)
			}
			left(key)
		}

		// What is absolute stays as it is.
		due := time.Now().Add(apart + time.Hour).Truncate(time.Second)
		seconds := strconv.FormatInt(due.Unix(), 10)
		for n, command := range []string{"SET k v EXAT", "EXPIREAT k", "GETEX k EXAT"} {
			key := fmt.Sprint(owner, "abs", n)
			at.ask("+OK", "SET", key, "v", "EX", "1000")
			args := append(strings.Fields(command), seconds)
			args[1] = key
			other.command(args...)
			other.answer()
			other.ask(":"+seconds, "EXPIRETIME", key)
			at.ask(":"+seconds, "EXPIRETIME", key)
		}

		// A key that the owner has not delivered yet exists for all.
		key := owner + "key"
		at.ask("+OK", "SET", key, "v", "EX", "3600")
		for _, w := range []*wire{at, other} {
			w.ask("v", "GET", key)
			w.ask(":1", "EXISTS", key)
			w.ask("+string", "TYPE", key)
			w.ask("*1 "+key, "KEYS", key)
		}
		// A deadline of the past deletes it.
		other.ask(":1", "EXPIRE", key, "-1")
		other.ask(":0", "EXISTS", key)
	}
}
