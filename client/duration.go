package client

import (
	"errors"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/internal/timespan"
)

// Duration is a time.Duration in settings and answers, where it has the API's form:
// that of time.ParseDuration, also with d for 24 hours, such as "1d12h".
type Duration time.Duration

const day = timespan.Day

// String returns the API's form, the largest units first and none of them zero.
func (d Duration) String() string { return timespan.Format(time.Duration(d)) }

// MarshalJSON writes the API's form.
func (d Duration) MarshalJSON() ([]byte, error) { return []byte(`"` + d.String() + `"`), nil }

// UnmarshalJSON reads text in the API's form, or a number of milliseconds.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] != '"' {
		parsed, ok := timespan.ParseMillis(string(data))
		if !ok {
			return errDuration
		}
		*d = Duration(parsed)
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
	if d, ok := timespan.Parse(text); ok {
		return d, nil
	}
	return 0, errDuration
}
