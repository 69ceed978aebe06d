package httpapi

import (
	"errors"
	"strings"
	"time"

	"github.com/lapsehq/lapse/internal/timespan"
)

const (
	day          = timespan.Day
	durationForm = `a duration such as "90s", "30m" or "7d", or a number of milliseconds`
)

var errDuration = errors.New("must be " + durationForm)

// duration reads a span of time that lies within low and high.
func (s *scanner) duration(field string) time.Duration {
	if s.err != nil {
		return 0
	}
	var d time.Duration
	var ok bool
	switch c := s.peek(); {
	case c == '"':
		text := s.text()
		if s.err != nil {
			return 0
		}
		d, ok = timespan.Parse(string(text))
	case c == '-' || isDigit(c):
		number := s.raw()
		if s.err != nil {
			return 0
		}
		d, ok = timespan.ParseMillis(string(number))
	default:
		s.wrong(field, durationForm)
		return 0
	}
	if !ok {
		s.fault(field, errDuration.Error())
		return 0
	}
	return d
}

// span reads a duration from low to high.
func (s *scanner) span(field string, low, high time.Duration) time.Duration {
	before := len(s.faults)
	d := s.duration(field)
	if s.err == nil && len(s.faults) == before && (d < low || d > high) {
		s.fault(field, "must be from "+timespan.Format(low)+" to "+timespan.Format(high))
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
