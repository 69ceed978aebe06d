package rediskeys

import (
	"strconv"
	"testing"
)

// What is said of a key waits while a scan holds it, however many scans do.
func TestHeldKeysWait(t *testing.T) {
	h := newHands()
	h.activate()
	h.hold([]string{"a", "b"})
	h.hold([]string{"a"})
	h.note("a", false)
	h.note("c", true)
	if got := h.take(10); len(got) != 1 || !got["c"] {
		t.Errorf("took %v", got)
	}
	h.release([]deadline{{key: "a"}, {key: "b"}})
	if got := h.take(10); len(got) != 0 {
		t.Errorf("took %v, which a scan has", got)
	}
	h.release([]deadline{{key: "a"}})
	<-h.wake
	if got := h.take(10); len(got) != 1 {
		t.Errorf("took %v", got)
	}
	if len(h.held) != 0 {
		t.Errorf("%v are held still", h.held)
	}
}

// The keys that wait are bounded: past that, all are scanned.
func TestTooManyChanges(t *testing.T) {
	h := newHands()
	for i := range mostChanged + 1 {
		h.note(strconv.Itoa(i), false)
	}
	if !h.takeLost() || h.takeLost() || len(h.changed) != mostChanged {
		t.Errorf("%d wait", len(h.changed))
	}
}

func TestNotificationSettings(t *testing.T) {
	for flags, want := range map[string]string{"": "Kg$e", "AKE": "", "KEA": "", "Ex": "Kg$e", "Kg$e": "", "Kgx": "$e", "AE": "K"} {
		if got := lacking(flags); got != want {
			t.Errorf("%q lacks %q, want %q", flags, got, want)
		}
	}
}

func TestEvicts(t *testing.T) {
	for info, want := range map[string]bool{
		"# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n": false,
		"# Memory\r\nmaxmemory:9\r\nmaxmemory_policy:noeviction\r\n":  false,
		"# Memory\r\nmaxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\n": true,
		"": true,
	} {
		if evicts(info) != want {
			t.Errorf("%q: %v", info, !want)
		}
	}
}
