package hugepage

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A block of which a page is in use elsewhere is tried again, and one without memory later.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		err          error
		again, tries int
	}{
		{unix.EAGAIN, mostTries, mostTries}, {unix.EBUSY, mostTries, mostTries}, {unix.EINVAL, 1, 1}, {unix.ENOMEM, 0, 1},
	} {
		c, _, refusal := faked()
		c.Note([]Piece{{blockSize, blockSize}})
		*refusal = test.err
		again := 0
		for c.Collapse() {
			again++
		}
		if got := c.Counts().Refused; again != test.again || got != int64(test.tries) {
			t.Errorf("%v: %d times to go on, %d refusals", test.err, again, got)
		}
	}
}
