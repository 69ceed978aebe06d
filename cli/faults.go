package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/client"
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

// note makes kong go on after a number, a duration or a level that cannot be read, whether it stood
// on the command line, in the environment or in the file. It treats zero as a fault too: to package
// tasks zero means the default, and an operator who types it means something else.
func (f *faults) note() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		plain := kong.NewRegistry().RegisterDefaults()
		for t, zero := range map[reflect.Type]bool{
			reflect.TypeFor[int]():           false,
			reflect.TypeFor[int64]():         false,
			reflect.TypeFor[time.Duration](): false,
			reflect.TypeFor[slog.Level]():    true, // info
		} {
			inner := plain.ForType(t)
			if t == reflect.TypeFor[time.Duration]() {
				inner = kong.MapperFunc(decodeDuration)
			}
			noting := func(ctx *kong.DecodeContext, target reflect.Value) error {
				if err := inner.Decode(ctx, target); err != nil {
					f.add("%s: %w", ctx.Value.Name, err)
				} else if target.IsZero() && !zero {
					f.add("%s: must not be zero", ctx.Value.Name)
				}
				return nil
			}
			if err := kong.TypeMapper(t, kong.MapperFunc(noting)).Apply(k); err != nil {
				return err
			}
		}
		return nil
	})
}

// decodeDuration reads a duration, which may also be in days.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	t, err := ctx.Scan.PopValue("duration")
	if err != nil {
		return err
	}
	d, err := client.ParseDuration(t.String())
	target.SetInt(int64(d))
	return err
}
