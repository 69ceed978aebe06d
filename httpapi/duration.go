package httpapi

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// A span of time on the wire is a text such as "30m", "7d" or "1d12h30m", in
// the units of time.ParseDuration and d for 24 hours, or a number of
// milliseconds.

const (
	day          = 24 * time.Hour
	durationForm = `a duration such as "90s", "30m" or "7d", or a number of milliseconds`
)

var errDuration = errors.New("must be " + durationForm)

// parseDuration reads a duration as text. Days come first, as in "1d12h", and
// may have a fraction, as in "1.5d". It never repeats the text in its error.
func parseDuration(text string) (time.Duration, error) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		return parseClock(text)
	}
	if strings.Trim(days, "+-.0123456789") != "" {
		return 0, errDuration // other units stand after the days
	}
	negative := strings.HasPrefix(days, "-")
	// Days are 24 hours, and ParseDuration is exact where a float is not.
	whole, err := parseClock(days + "h")
	if err != nil || whole > math.MaxInt64/24 || whole < math.MinInt64/24 {
		return 0, errDuration
	}
	sum := whole * 24
	if rest == "" {
		return sum, nil
	}
	if rest[0] == '-' || rest[0] == '+' {
		return 0, errDuration // a sign stands in front only
	}
	clock, err := parseClock(rest)
	if err != nil {
		return 0, errDuration
	}
	if negative {
		clock = -clock
	}
	if total := sum + clock; (clock >= 0) == (total >= sum) {
		return total, nil
	}
	return 0, errDuration
}

func parseClock(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errDuration
	}
	return d, nil
}

// parseMillis reads a number of milliseconds, written as in JSON.
func parseMillis(number string) (time.Duration, error) {
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		if n > math.MaxInt64/int64(time.Millisecond) || n < math.MinInt64/int64(time.Millisecond) {
			return 0, errDuration
		}
		return time.Duration(n) * time.Millisecond, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	f *= float64(time.Millisecond)
	if err != nil || math.Abs(f) >= math.MaxInt64 {
		return 0, errDuration
	}
	return time.Duration(math.Round(f)), nil
}

// formatDuration writes a duration so that parseDuration reads the same: the
// largest units first, none of them zero, as in "1d12h" or "1m30s".
func formatDuration(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	var b []byte
	// The magnitude of the smallest duration fits only without a sign.
	u := uint64(d)
	if d < 0 {
		b = append(b, '-')
		u = -u
	}
	for _, unit := range [...]struct {
		length time.Duration
		name   byte
	}{{day, 'd'}, {time.Hour, 'h'}, {time.Minute, 'm'}} {
		if n := u / uint64(unit.length); n > 0 {
			b = append(strconv.AppendUint(b, n, 10), unit.name)
			u %= uint64(unit.length)
		}
	}
	if u > 0 {
		b = append(b, time.Duration(u).String()...)
	}
	return string(b)
}

// duration reads a span of time that lies within low and high.
func (s *scanner) duration(field string) time.Duration {
	if s.err != nil {
		return 0
	}
	var d time.Duration
	var err error
	switch c := s.peek(); {
	case c == '"':
		text := s.text()
		if s.err != nil {
			return 0
		}
		d, err = parseDuration(string(text))
	case c == '-' || isDigit(c):
		number := s.raw()
		if s.err != nil {
			return 0
		}
		d, err = parseMillis(string(number))
	default:
		s.wrong(field, durationForm)
		return 0
	}
	if err != nil {
		s.fault(field, err.Error())
		return 0
	}
	return d
}

// span reads a duration from low to high.
func (s *scanner) span(field string, low, high time.Duration) time.Duration {
	before := len(s.faults)
	d := s.duration(field)
	if s.err == nil && len(s.faults) == before && (d < low || d > high) {
		s.fault(field, "must be from "+formatDuration(low)+" to "+formatDuration(high))
	}
	return d
}

const instantForm = `an RFC 3339 time such as "2030-01-31T12:00:00.000Z"`

// instant reads a point in time.
func (s *scanner) instant(field string) time.Time {
	if s.err != nil {
		return time.Time{}
	}
	if s.peek() != '"' {
		s.wrong(field, instantForm)
		return time.Time{}
	}
	text := s.text()
	if s.err != nil {
		return time.Time{}
	}
	t, err := parseInstant(string(text))
	if err != nil {
		s.fault(field, err.Error())
	}
	if err == nil && t.IsZero() {
		t = time.UnixMilli(0) // also in the past; the zero Time would mean none
	}
	return t
}

// parseInstant reads an RFC 3339 time with a fraction of any length. Digits beyond a nanosecond
// round up, since a task must never be early.
func parseInstant(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || !strictInstant(text) {
		return time.Time{}, errInstant
	}
	_, fraction, _ := strings.Cut(text, ".")
	const nano = 9
	for i := 0; i < len(fraction) && isDigit(fraction[i]); i++ {
		if i >= nano && fraction[i] != '0' {
			return t.Add(1), nil
		}
	}
	return t, nil
}

var errInstant = errors.New("must be " + instantForm)

// strictInstant refuses what time.Parse lets pass and RFC 3339 does not: hours of
// one digit, a comma before the fraction, and zones beyond a day.
func strictInstant(text string) bool {
	const form = "0000-00-00T00:00:00"
	if len(text) <= len(form) || text[len("0000-00-00T00")] != ':' || strings.Contains(text, ",") {
		return false
	}
	if zone := len(text) - len("+00:00"); text[len(text)-1] != 'Z' {
		return text[zone+1:zone+3] < "24" && text[zone+4:] < "60"
	}
	return true
}
