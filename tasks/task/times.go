package task

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/robfig/cron/v3"
)

const maxTimes = 100

// fiveFields are minute, hour, day of month, month and day of week.
var fiveFields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// Times are moments that cron expressions name. They read no clock: the caller hands the time in.
type Times struct {
	all   []cron.Schedule
	next  time.Time // the soonest to come, as seen from asked
	asked time.Time // when Due was last called

	minute time.Time // that Holds has judged last
	held   bool
}

// ParseTimes returns the moments of the cron expressions of a setting. Its error reports every
// expression that cannot be read, with its position.
func ParseTimes(setting string, expressions []string) (*Times, error) {
	var all *multierror.Error
	if len(expressions) > maxTimes {
		all = multierror.Append(all, fmt.Errorf("%s must be at most %d times", setting, maxTimes))
		expressions = nil
	}
	t := &Times{}
	for i, text := range expressions {
		schedule, err := parseTime(text)
		if err != nil {
			all = multierror.Append(all, fmt.Errorf("%s[%d] %.100q must be a cron expression of five fields: %w", setting, i, text, err))
		}
		t.all = append(t.all, schedule)
	}
	return t, all.ErrorOrNil()
}

// parseTime returns the schedule of one expression. It fails if text is none, or if
// its time never occurs.
func parseTime(text string) (cron.Schedule, error) {
	text = strings.TrimSpace(text)
	if zoned := strings.HasPrefix(text, "TZ=") || strings.HasPrefix(text, "CRON_TZ="); zoned && !strings.Contains(text, " ") {
		return nil, errors.New("nothing follows the time zone") // the parser would panic
	}
	schedule, err := fiveFields.Parse(text)
	if err != nil {
		return nil, err
	}
	// Within five years of a date before a leap day: 30 February never occurs.
	if schedule.Next(time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("the time never occurs")
	}
	return schedule, nil
}

// Due reports whether one of the times has passed since the last call, however many have: a caller
// that slept through several learns it once. The first call only begins to count.
func (t *Times) Due(now time.Time) bool {
	// Without its monotonic reading, which stands still while the machine sleeps; and in UTC, which
	// the parser takes for the zone of those that name none.
	now = now.Round(0).UTC()
	// Seen from a wrong year, the next time may be years ahead.
	setBack := now.Before(t.asked.Add(-time.Minute))
	t.asked = now
	due := !t.next.IsZero() && !now.Before(t.next)
	if due || setBack || t.next.IsZero() {
		t.next = time.Time{}
		for _, schedule := range t.all {
			if at := schedule.Next(now); t.next.IsZero() || !at.IsZero() && at.Before(t.next) {
				t.next = at
			}
		}
	}
	return due
}

// Holds reports whether now is within a minute that one of the expressions names.
func (t *Times) Holds(now time.Time) bool {
	minute := now.Round(0).UTC().Truncate(time.Minute)
	if !minute.Equal(t.minute) {
		t.minute, t.held = minute, false
		for _, schedule := range t.all {
			t.held = t.held || schedule.Next(minute.Add(-time.Second)).Equal(minute)
		}
	}
	return t.held
}

// HelperBacklog is the entry of Config.SweepHelper for backlogs; the others are times.
const HelperBacklog = "backlog"

// Helping says when a node helps the others: Config.SweepHelper as it was read.
type Helping struct {
	Backlog bool   // whenever another node has a backlog
	Times   *Times // in each minute that these name; nil: never
}

// parseHelping reads the entries of Config.SweepHelper.
func parseHelping(entries []string) (h Helping, err error) {
	var times []string
	for _, entry := range entries {
		if strings.TrimSpace(entry) == HelperBacklog {
			h.Backlog = true
		} else {
			times = append(times, entry)
		}
	}
	if len(times) == 0 {
		return h, nil
	}
	if h.Times, err = ParseTimes("sweep.helper", times); err != nil {
		err = fmt.Errorf("%w (or the word %s)", err, HelperBacklog)
	}
	return h, err
}
