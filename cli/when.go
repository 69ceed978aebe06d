package cli

import (
	"fmt"
	"math"
	"time"

	"github.com/lapsehq/lapse/client"
)

// span is a duration on the command line. It accepts d for days, and records whether it was given.
type span struct {
	time.Duration
	given bool
}

// UnmarshalText reads it.
func (s *span) UnmarshalText(text []byte) (err error) {
	s.Duration, err = client.ParseDuration(string(text))
	s.given = err == nil
	return err
}

// pointer is nil if it was not given.
func (s *span) pointer() *time.Duration {
	if !s.given {
		return nil
	}
	return &s.Duration
}

// instant is a point in time on the command line.
type instant struct{ time.Time }

// UnmarshalText reads it.
func (i *instant) UnmarshalText(text []byte) (err error) {
	if i.Time, err = time.Parse(time.RFC3339Nano, string(text)); err != nil {
		err = fmt.Errorf("must be an RFC 3339 time such as %q", "2030-01-31T12:00:00Z")
	}
	return err
}

// relative returns how far away a time is: "in 29m58s", "3.2s ago".
func relative(t, now time.Time) string {
	d := max(t.Sub(now), -math.MaxInt64)
	switch {
	case roundedText(d) == "0s", roundedText(-d) == "0s":
		return "now"
	case d > 0:
		return "in " + roundedText(d)
	}
	return roundedText(-d) + " ago"
}

// timeText is a time to the millisecond, without how far away it is.
func timeText(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05.000") }

// roundedText is a duration to two units, or to a tenth of a second below a minute.
func roundedText(d time.Duration) string {
	switch {
	case d == math.MinInt64: // it has no opposite
		return roundedText(d + 1)
	case d < 0:
		return "-" + roundedText(-d)
	case d < time.Second:
		d = d.Round(time.Millisecond)
	case d < time.Minute:
		d = d.Round(100 * time.Millisecond)
	case d < time.Hour:
		d = d.Round(time.Second)
	case d < 24*time.Hour:
		d = d.Round(time.Minute)
	default:
		// The rounding does nothing close to the greatest duration.
		d = min(d, math.MaxInt64-time.Hour).Round(time.Hour)
	}
	return client.Duration(d).String()
}

// instantText is a time with its distance from now.
func instantText(t, now time.Time) string {
	return fmt.Sprintf("%s (%s)", relative(t, now), t.Local().Format("2006-01-02 15:04:05.000 -0700"))
}

// short is a plain text cut to a width.
func short(text string, width int) string {
	runes := []rune(plain(text))
	if len(runes) <= width {
		return string(runes)
	}
	return string(runes[:width-3]) + "..."
}
