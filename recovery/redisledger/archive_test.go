package redisledger

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// The rows of a period expire when the last one is too old. A user of Redis who may not have them
// expire writes none.
func TestRowsExpire(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := newLives(server.URL()).open(t)
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Hour).Add(20 * time.Minute)
	rows := []recovery.Row{{Part: "p", At: now, Name: "a b", Value: []byte("v")}}
	if err := l.Keep(t.Context(), recovery.MinuteRows, now, rows); err != nil {
		t.Fatal(err)
	}
	key := l.keys.Rows("minutes", recovery.MinuteRows.Begins(now), "p")
	left := l.client.PTTL(t.Context(), key).Val()
	if want := recovery.MinuteRows.Kept + 40*time.Minute; left > want || left < want-time.Minute {
		t.Errorf("%s expires in %v, want %v", key, left, want)
	}

	server.Do("acl", "setuser", "default", "-pexpire")
	rows[0].Part = "q"
	if err := l.Keep(t.Context(), recovery.MinuteRows, now, rows); err == nil {
		t.Error("Keep without PEXPIRE has not failed")
	}
	if n := l.client.Exists(t.Context(), l.keys.Rows("minutes", recovery.MinuteRows.Begins(now), "q")).Val(); n != 0 {
		t.Error("rows were written that do not expire")
	}
}
