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

// errSettings is returned, with all faults in its text, when the server cannot
// be started the way it is told to.
var errSettings = errors.New("the settings are wrong")

// faults gathers what is wrong with the settings, so that an operator sees all
// of it at once and not one fault a start.
type faults struct {
	all    *multierror.Error
	places map[string]string // by name of what is in the configuration file: where
}

// place notes where the value of a setting stands, to be told with its faults.
func (f *faults) place(name, where string) {
	if f.places == nil {
		f.places = map[string]string{}
	}
	f.places[name] = where
}

// where finds the place of what a fault begins with: the name of a setting, with
// hyphens, underscores or dots, or the path of something under topics.
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

// include adds what another check has found.
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

// note makes kong go on after a number, a duration or a level that cannot be
// read, whether it stood on the command line, in the environment or in the
// file. Zero is one of them: to package tasks it means the default, and nobody
// types it to say that.
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
