package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/go-multierror"
)

// errSettings is returned, with all faults in its text, when the settings do not allow the server
// to start.
var errSettings = errors.New("the settings are wrong")

// faults collects what is wrong with the settings, so that an operator sees all of it at once and
// not one fault a start.
type faults struct {
	all    *multierror.Error
	places map[string]string // by name of what is in the configuration file: where
}

// place records where the value of a setting stands, for the messages of its faults.
func (f *faults) place(name, where string) {
	if f.places == nil {
		f.places = map[string]string{}
	}
	f.places[name] = where
}

// where returns the place of the setting that a fault begins with: its name, with hyphens,
// underscores or dots, or the path of a setting under topics.
func (f *faults) where(fault string) string {
	name, _, _ := strings.Cut(strings.TrimRight(strings.Fields(fault + " .")[0], ":"), "[")
	if place, ok := f.places[name]; ok {
		return place
	}
	return f.places[strings.NewReplacer("_", "-", ".", "-").Replace(name)]
}

func (f *faults) add(format string, args ...any) {
	f.all = multierror.Append(f.all, fmt.Errorf(format, args...))
}

// include adds the faults of another check.
func (f *faults) include(err error) {
	if err != nil {
		f.all = multierror.Append(f.all, err)
	}
}

// err is nil if there was no fault.
func (f *faults) err() error {
	if f.all == nil {
		return nil
	}
	var lines strings.Builder
	for _, fault := range f.all.Errors {
		text := fault.Error()
		lines.WriteString("\n  " + text)
		if place := f.where(text); place != "" {
			lines.WriteString(" (" + place + ")")
		}
	}
	return fmt.Errorf("%w:%s", errSettings, lines.String())
}

// failures are errors of several things that a command was to do. Each has a line of its own.
type failures struct {
	heading string
	errs    []error
}

func (f *failures) Error() string {
	var b strings.Builder
	b.WriteString(f.heading)
	for _, err := range f.errs {
		b.WriteString("\n  " + strings.ReplaceAll(err.Error(), "\n", "\n  "))
	}
	return b.String()
}

func (f *failures) Unwrap() []error { return f.errs }

// counted is a number of things in words, such as "1 task is" or "2 tasks are".
func counted[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
