package client

import (
	"errors"
	"fmt"
	"time"
)

// optionFaults collects what is wrong with options.
type optionFaults []error

func (f *optionFaults) add(text string) { *f = append(*f, errors.New(text)) }

// number checks an option, 0 meaning its default.
func (f *optionFaults) number(name string, given, def, low, high int) int {
	if given == 0 {
		return def
	}
	if given < low || given > high {
		f.add(fmt.Sprintf("option %s must be from %d to %d", name, low, high))
	}
	return given
}

// span checks an option, 0 meaning its default.
func (f *optionFaults) span(name string, given, def, low, high time.Duration) time.Duration {
	if given == 0 {
		return def
	}
	if given < low || given > high {
		f.add(fmt.Sprintf("option %s must be from %s to %s", name, Duration(low), Duration(high)))
	}
	return given
}

func (f *optionFaults) err() error { return errors.Join(*f...) }
