package movein

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// redraw is how often progress is shown.
const redraw = 200 * time.Millisecond

// Progress shows on a terminal how far an import is.
type Progress struct {
	counts *Counts
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once

	mu      sync.Mutex // guards everything below, and what is written to the terminal
	bar     *progressbar.ProgressBar
	to      io.Writer
	endless bool // how many things there are is not known
}

// NewProgress begins to show progress of so many things, 0 meaning that their number is not known.
// A nil terminal shows nothing. Stop ends it.
func NewProgress(terminal io.Writer, counts *Counts, things int64) *Progress {
	p := &Progress{counts: counts, stop: make(chan struct{}), done: make(chan struct{}), to: terminal}
	if terminal == nil {
		close(p.done)
		return p
	}
	if p.endless = things == 0; p.endless {
		things = -1 // a spinner
	}
	p.bar = progressbar.NewOptions64(things, progressbar.OptionSetWriter(terminal), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
		progressbar.OptionSetWidth(20), progressbar.OptionThrottle(0), progressbar.OptionClearOnFinish(), progressbar.OptionSetElapsedTime(true),
		progressbar.OptionSetSpinnerChangeInterval(0)) // it is drawn by run alone
	go p.run()
	return p
}

func (p *Progress) run() {
	defer close(p.done)
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.show()
		case <-p.stop:
			return
		}
	}
}

func (p *Progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.Describe(fmt.Sprintf("%d tasks", p.counts.Accepted()))
	read := p.counts.Read.Load()
	if !p.endless && read >= p.bar.GetMax64() {
		p.bar.ChangeMax64(read + 1) // there are more than it seemed: a bar that is full would end
	}
	_ = p.bar.Set64(read)
}

// Size says that about so many more things are to be read, or with -1 that there is no end: a bar
// would stay just before it.
func (p *Progress) Size(things int64) {
	if p.bar == nil || things == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if endless := things < 0; endless != p.endless {
		p.bar.Reset() // its position means something else from now on
		p.endless = endless
	}
	if !p.endless {
		things += p.counts.Read.Load()
	}
	p.bar.ChangeMax64(things)
}

// Tell writes a line above what is shown, or to another writer if nothing is.
func (p *Progress) Tell(otherwise io.Writer, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintln(otherwise, line)
}

// Stop takes away what is shown.
func (p *Progress) Stop() {
	p.once.Do(func() {
		close(p.stop)
		<-p.done
		if p.bar != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			_ = p.bar.Clear()
		}
	})
}
