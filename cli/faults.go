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
)

// errSettings is returned, with all faults in its text, when the server cannot
// be started the way it is told to.
var errSettings = errors.New("the settings are wrong")

// faults gathers what is wrong with the settings, so that an operator sees all
// of it at once and not one fault a start.
type faults struct{ all *multierror.Error }

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
		lines.WriteString("\n  " + fault.Error())
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
