package broker

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/lapsehq/lapse/tasks"
)

// timeForm is RFC 3339 with milliseconds, as in Lapse's API.
const timeForm = "2006-01-02T15:04:05.000Z07:00"

// Headers yields what a message says of its task in headers that begin with lapse-, and then the
// task's own headers. Of these it leaves out all that begin so, or with another prefix that the
// broker reserves.
func Headers(d *tasks.Delivery, reserved ...string) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for _, h := range [...][2]string{
			{"lapse-id", d.ID}, {"lapse-topic", d.Topic}, {"lapse-due", d.Due.UTC().Format(timeForm)},
			{"lapse-attempt", strconv.Itoa(d.Attempt)}, {"lapse-group", d.Group},
		} {
			if h[1] != "" && !yield(h[0], h[1]) { // there may be no group
				return
			}
		}
		for name, value := range d.Headers {
			begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
			if !begins("lapse-") && !slices.ContainsFunc(reserved, begins) && !yield(name, value) {
				return
			}
		}
	}
}
