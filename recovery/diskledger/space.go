package diskledger

import (
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery"
)

// spaceEvery is how often the disk is asked for its free space, at most.
const spaceEvery = time.Second

// A space watches the free space of the disk.
type space struct {
	floor uint64 // in bytes; 0 means that it is not watched

	mu    sync.Mutex // guards everything below
	asked time.Time
	err   error // the answer since
}

// Condition implements recovery.Conditioner. It asks the disk at most once a
// second. Once there is too little room, there must be a quarter more than
// Options.MinFree before it answers nil again. A full disk that has broken the
// store counts as well, until the store is open again.
func (l *Ledger) Condition() error {
	l.mu.Lock()
	outage := l.outage
	l.mu.Unlock()
	if outage != nil && vfs.IsNoSpaceError(outage) {
		return fmt.Errorf("%w: %s: %w", recovery.ErrFull, l.dir, outage)
	}
	if l.space.floor == 0 {
		return nil
	}
	return l.space.condition(time.Now(), func() (uint64, error) {
		usage, err := l.fs.GetDiskUsage(l.dir)
		return usage.AvailBytes, err
	}, l.dir)
}

func (s *space) condition(now time.Time, free func() (uint64, error), dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asked.IsZero() && now.Sub(s.asked) < spaceEvery {
		return s.err
	}
	s.asked = now
	enough := s.floor
	if s.err != nil {
		enough += s.floor / 4
	}
	switch bytes, err := free(); {
	case err != nil:
		// No figure is no reason to refuse: a write that fails will tell.
		s.err = nil
	case bytes < enough:
		s.err = fmt.Errorf("%w: the disk of %s has %d MiB left, of which %d are kept free",
			recovery.ErrFull, dir, bytes>>20, s.floor>>20)
	default:
		s.err = nil
	}
	return s.err
}
