package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// An error between nodes has a text of its own: it does not repeat the more general error.
func TestErrorTexts(t *testing.T) {
	all := []error{engine.ErrUnsure, engine.ErrAcquiring, engine.ErrInDoubt, engine.ErrIllegible, errNoTime}
	for _, c := range ErrorCodes {
		all = append(all, c.Err)
	}
	for _, err := range all {
		for e := err; e != nil; e = errors.Unwrap(e) {
			if general := errors.Unwrap(e); general != nil && strings.Contains(e.Error(), general.Error()) {
				t.Errorf("%q repeats %q", e, general)
			}
		}
	}
}
