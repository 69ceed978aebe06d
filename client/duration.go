package client

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-json"
)

// Duration is a time.Duration in settings and answers, where it has the API's form:
// that of time.ParseDuration, also with d for 24 hours, such as "1d12h".
type Duration time.Duration

const day = 24 * time.Hour

// String returns the API's form, the largest units first and none of them zero.
func (d Duration) String() string {
	if d == 0 {
		return "0s"
	}
	var b []byte
	u := uint64(d) // the magnitude of the smallest duration fits only without a sign
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

// MarshalJSON writes the API's form.
func (d Duration) MarshalJSON() ([]byte, error) { return []byte(`"` + d.String() + `"`), nil }

// UnmarshalJSON reads text in the API's form, or a number of milliseconds.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] != '"' {
		ms, err := strconv.ParseFloat(string(data), 64)
		if err != nil || math.Abs(ms) >= math.MaxInt64/float64(time.Millisecond) {
			return errDuration
		}
		*d = Duration(math.Round(ms * float64(time.Millisecond)))
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	parsed, err := ParseDuration(text)
	*d = Duration(parsed)
	return err
}

var errDuration = errors.New(`must be a duration such as "90s", "30m", "7d" or "1d12h"`)

// ParseDuration is time.ParseDuration, and knows d for 24 hours: days stand first,
// and may have a fraction. The error does not repeat the text.
func ParseDuration(text string) (time.Duration, error) {
	days, clock, found := strings.Cut(text, "d")
	if !found {
		days, clock = "", text
	} else if days == "" || strings.Trim(days, "+-.0123456789") != "" || strings.HasPrefix(clock, "-") || strings.HasPrefix(clock, "+") {
		return 0, errDuration // other units stand in front, or a second sign
	}
	var whole, rest time.Duration
	var err error
	if found {
		// ParseDuration is exact where a float is not.
		if whole, err = time.ParseDuration(days + "h"); err != nil || whole > math.MaxInt64/24 || whole < math.MinInt64/24 {
			return 0, errDuration
		}
		whole *= 24
	}
	if !found || clock != "" {
		if rest, err = time.ParseDuration(clock); err != nil {
			return 0, errDuration
		}
		if strings.HasPrefix(days, "-") {
			rest = -rest
		}
	}
	if sum := whole + rest; (sum >= whole) == (rest >= 0) {
		return sum, nil
	}
	return 0, errDuration
}
