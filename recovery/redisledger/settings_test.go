package redisledger

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// fillSettings writes n settings of size bytes, without the ledger.
func fillSettings(t *testing.T, c redis.UniversalClient, k layout.Keys, n, size int) {
	t.Helper()
	fields := make([]any, 0, 2*n)
	for i := range n {
		fields = append(fields, fmt.Sprintf("topic/%06d", i), "1:"+strings.Repeat("x", size))
	}
	fields = append(fields, "!v", n)
	if err := c.HSet(t.Context(), k.Topics(), fields...).Err(); err != nil {
		t.Fatal(err)
	}
}

func allSettings(t *testing.T, l *Ledger) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := l.EachSetting(t.Context(), "", func(name string, value []byte, revision int64) {
		all[name] = string(value)
	}); err != nil {
		t.Fatalf("EachSetting: %v", err)
	}
	return all
}

// Settings that do not come within a second when they are read together are read nevertheless, in
// smaller pages.
func TestManySettingsOverASlowLine(t *testing.T) {
	t.Parallel()
	const n, size, rate = 2000, 2000, 2_000_000 // 4 MB: 2 s
	l, proxy, _ := behindLine(t)
	fillSettings(t, l.client, l.keys, n, size)
	proxy.Throttle(rate)
	if all := allSettings(t, l); len(all) != n || len(all["topic/000007"]) != size {
		t.Errorf("%d settings were read", len(all))
	}
	if w := l.Health().Waiting; len(w) > 0 {
		t.Errorf("it still waits for %v", w)
	}
}

// While no settings come, readiness says so.
func TestSettingsDoNotCome(t *testing.T) {
	t.Parallel()
	l, proxy, _ := behindLine(t)
	fillSettings(t, l.client, l.keys, 2000, 2000)
	proxy.Throttle(1000)
	ended := make(chan error, 1)
	go func() { ended <- l.EachSetting(t.Context(), "", func(string, []byte, int64) {}) }()
	eventually(t, "readiness tells of it", func() bool {
		all := l.Health().Waiting
		return len(all) == 1 && all[0].What == "reading settings from Redis" && all[0].Detail != ""
	})
	proxy.Throttle(0)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if w := l.Health().Waiting; len(w) > 0 {
		t.Errorf("it still waits for %v", w)
	}
}
