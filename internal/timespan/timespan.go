// Package timespan has the text form of durations in the API, for the server and for the client: a
// text such as "30m", "7d" or "1d12h30m", in the units of time.ParseDuration and d for 24 hours, or
// a number of milliseconds. The text that Format writes is read by Parse as the same duration.
package timespan

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Day is the length of a day: 24 hours.
const Day = 24 * time.Hour

// Parse reads a text. Days come first, as in "1d12h", and may have a fraction, as in "1.5d". It
// reports false for any other text, and for a duration that is too long for a time.Duration.
func Parse(text string) (d time.Duration, ok bool) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		return parseClock(text)
	}
	if strings.Trim(days, "+-.0123456789") != "" {
		return 0, false // other units stand before the days
	}
	// Days are 24 hours, and ParseDuration is exact where a float is not.
	whole, ok := parseClock(days + "h")
	if !ok || whole > math.MaxInt64/24 || whole < math.MinInt64/24 {
		return 0, false
	}
	sum := whole * 24
	if rest == "" {
		return sum, true
	}
	if rest[0] == '-' || rest[0] == '+' {
		return 0, false // a sign stands in front only
	}
	clock, ok := parseClock(rest)
	if strings.HasPrefix(days, "-") {
		clock = -clock
	}
	if total := sum + clock; ok && (clock >= 0) == (total >= sum) {
		return total, true
	}
	return 0, false
}

func parseClock(text string) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	return d, err == nil
}

// ParseMillis reads a number of milliseconds, written as in JSON. It reports false for any other
// text, and for a number that is too large.
func ParseMillis(number string) (d time.Duration, ok bool) {
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		const most = math.MaxInt64 / int64(time.Millisecond)
		return time.Duration(n) * time.Millisecond, n <= most && n >= -most
	}
	f, err := strconv.ParseFloat(number, 64)
	f *= float64(time.Millisecond)
	return time.Duration(math.Round(f)), err == nil && math.Abs(f) < math.MaxInt64
}

// Format writes a duration: the largest units first, none of them zero, as in "1d12h" or "1m30s".
func Format(d time.Duration) string {
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
	}{{Day, 'd'}, {time.Hour, 'h'}, {time.Minute, 'm'}} {
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
