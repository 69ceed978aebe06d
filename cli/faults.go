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
// read,
// whether it stood on the command line, in the environment or in the file.
func (f *faults) note() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		plain := kong.NewRegistry().RegisterDefaults()
		for _, t := range []reflect.Type{reflect.TypeFor[int](), reflect.TypeFor[time.Duration](), reflect.TypeFor[slog.Level]()} {
			inner := plain.ForType(t)
			noting := func(ctx *kong.DecodeContext, target reflect.Value) error {
				if err := inner.Decode(ctx, target); err != nil {
					f.add("%s: %w", ctx.Value.Name, err)
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
