package ledgertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// testArchive: rows come back in order, by part and time, and survive a restart.
func testArchive(f *fixture) {
	if _, ok := f.ledger.(recovery.Archive); !ok {
		f.Skip("this ledger has no archive")
	}
	now := time.Now().UTC().Truncate(time.Hour).Add(30 * time.Minute)
	keep := func(s recovery.Series, rows ...recovery.Row) {
		f.Helper()
		if err := f.ledger.(recovery.Archive).Keep(f.ctx(), s, now, rows); err != nil {
			f.Fatalf("Keep: %v", err)
		}
	}
	row := func(part string, ago time.Duration, name, value string) recovery.Row {
		return recovery.Row{Part: part, At: now.Add(-ago), Name: name, Value: []byte(value)}
	}
	want := func(s recovery.Series, part string, from, to time.Duration, want ...string) {
		f.Helper()
		var got []string
		err := f.ledger.(recovery.Archive).Rows(f.ctx(), s, part, now.Add(-from), now.Add(-to), func(r recovery.Row) bool {
			if r.Part != part {
				f.Errorf("Rows(%s) visits a row of %s", part, r.Part)
			}
			got = append(got, fmt.Sprintf("%v %s=%s", now.Sub(r.At), r.Name, r.Value))
			return true
		})
		if err != nil || !slices.Equal(got, want) {
			f.Fatalf("Rows(%s, %s, %v to %v) = %q, %v; want %q", s.Name, part, from, to, got, err, want)
		}
	}
	const all = 24 * time.Hour
	want(recovery.MinuteRows, "", all, 0)
	keep(recovery.MinuteRows,
		row("", time.Minute, "b", "1"), row("", time.Minute, "a", ""), row("", 2*time.Hour, "a", "\x00old"),
		row("topic", time.Minute, "a", "2"), row("topic", 3*time.Hour, "a b", "3"), row("", -time.Minute, "a", "next"))
	keep(recovery.HourRows, row("", time.Hour, "a", "hour"), row("", 20*24*time.Hour, "a", "long ago"))
	keep(recovery.MinuteRows, row("", time.Minute, "b", "again"))
	keep(recovery.MinuteRows, row("", 30*time.Hour, "a", "too old"))
	for range 2 {
		want(recovery.MinuteRows, "", all, 0, "2h0m0s a=\x00old", "1m0s a=", "1m0s b=again")
		want(recovery.MinuteRows, "", time.Minute, -time.Hour, "1m0s a=", "1m0s b=again", "-1m0s a=next")
		want(recovery.MinuteRows, "", all, time.Minute, "2h0m0s a=\x00old")
		want(recovery.MinuteRows, "topic", all, 0, "3h0m0s a b=3", "1m0s a=2")
		want(recovery.MinuteRows, "top", all, 0)
		want(recovery.MinuteRows, "", 40*time.Hour, 2*time.Hour)
		want(recovery.HourRows, "", 25*24*time.Hour, 0, "480h0m0s a=long ago", "1h0m0s a=hour")
		want(recovery.MarkRows, "", all, 0)
		f.restart()
	}
	// A clock that is a year ahead once takes nothing of what is there.
	year := now.AddDate(1, 0, 0)
	if err := f.ledger.(recovery.Archive).Keep(f.ctx(), recovery.MinuteRows, year, []recovery.Row{{At: year, Name: "a"}}); err != nil {
		f.Fatal(err)
	}
	keep(recovery.MinuteRows)
	want(recovery.MinuteRows, "topic", all, 0, "3h0m0s a b=3", "1m0s a=2")
	n := 0
	if err := f.ledger.(recovery.Archive).Rows(f.ctx(), recovery.MinuteRows, "", now.Add(-all), now, func(recovery.Row) bool {
		n++
		return false
	}); err != nil || n != 1 {
		f.Errorf("a visit that ends the read was called %d times: %v", n, err)
	}
	for _, wrong := range [][]recovery.Row{
		{row("", 0, strings.Repeat("n", recovery.MaxRowName+1), "")},
		{row("a\x00b", 0, "", "")},
		{row("", 0, "", strings.Repeat("v", recovery.MaxRowBytes+1))},
		slices.Repeat([]recovery.Row{row("", 0, "", strings.Repeat("v", recovery.MaxRowBytes))}, 16),
	} {
		if err := f.ledger.(recovery.Archive).Keep(f.ctx(), recovery.MinuteRows, now, wrong); !errors.Is(err, recovery.ErrRow) {
			f.Errorf("Keep of %d rows that are too large: %v, want ErrRow", len(wrong), err)
		}
	}
}
