package redisledger

import (
	"errors"
	"strconv"
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

// A period that has too many rows does not hide those after it.
func TestFullPeriod(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := newLives(server.URL()).open(t)
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Hour).Add(20 * time.Minute)
	value := make([]byte, recovery.MaxRowBytes)
	for i := range recovery.MaxPeriodBytes/len(value) + 1 {
		row := recovery.Row{At: now.Add(-time.Hour), Name: strconv.Itoa(i), Value: value}
		if err := l.Keep(t.Context(), recovery.ActionRows, now, []recovery.Row{row}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Keep(t.Context(), recovery.ActionRows, now, []recovery.Row{{At: now, Name: "last"}}); err != nil {
		t.Fatal(err)
	}
	last := ""
	err := l.Rows(t.Context(), recovery.ActionRows, "", now.Add(-recovery.ActionRows.Kept), now.Add(time.Hour), func(r recovery.Row) bool {
		last = r.Name
		return true
	})
	if last != "last" || !errors.Is(err, recovery.ErrArchiveFull) {
		t.Errorf("the last row is %q, %v; want the one after the period that is full, and ErrArchiveFull", last, err)
	}
}
