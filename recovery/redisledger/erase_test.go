package redisledger

import (
	"testing"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// Erase removes keys that begin with the prefix, even if that looks like a pattern.
func TestErase(t *testing.T) {
	server := redistest.Start(t)
	opts := Options{URL: server.URL(), Node: "n", Prefix: "tool[1]*:"}
	l, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	adopt(t, l)
	apply(t, l, put("a", "record"))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []string{"tool1:x", "tool[1]x:", "lapse:topics", "tool"} {
		server.Do("set", foreign, "stays")
	}
	if n, err := Erase(t.Context(), opts); err != nil || n == 0 {
		t.Errorf("erased %d keys: %v", n, err)
	}
	if n, err := Erase(t.Context(), opts); err != nil || n != 0 {
		t.Errorf("again: erased %d keys: %v", n, err)
	}
	if left := server.Do("dbsize"); left != int64(4) {
		t.Errorf("%d keys are left, want the 4 foreign ones: %v", left, server.Do("keys", "*"))
	}
}

func TestEraseOnCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts three servers")
	}
	c := redistest.StartCluster(t)
	opts := Options{URL: c.URL(), Node: "n", Prefix: "tool:"}
	l, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	adopt(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n, err := Erase(t.Context(), opts)
	if err != nil || n < DefaultShards {
		t.Errorf("erased %d keys: %v", n, err)
	}
	if n, err := Erase(t.Context(), opts); err != nil || n != 0 {
		t.Errorf("again: erased %d keys: %v", n, err)
	}
}

func TestEraseRefuses(t *testing.T) {
	for _, prefix := range []string{"", "lapse:", "lap", "l", "lapse:no"} {
		if _, err := Erase(t.Context(), Options{URL: "redis://127.0.0.1:1", Node: "n", Prefix: prefix}); err == nil {
			t.Errorf("prefix %q: want a refusal", prefix)
		}
	}
}
