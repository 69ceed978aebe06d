package cli

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// A progress shows how far long work is, on a terminal only. The nil progress shows nothing.
type progress struct {
	options []progressbar.Option
	total   int64
	bar     *progressbar.ProgressBar // nil until a first part is done: short work shows none
}

// tasksUnknown is the total of work whose end is not known. It is shown as a count.
const tasksUnknown = -1

// progress begins to show how many things of a total are done, on standard error.
func (s *session) progress(things string, total int) *progress {
	if !isTerminal(s.std.err) || s.json {
		return nil
	}
	return &progress{total: int64(total), options: []progressbar.Option{
		progressbar.OptionSetWriter(s.std.err), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionSetItsString(things), progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetElapsedTime(true),
	}}
}

// bytesProgress begins to show how many bytes of a total are done, on a terminal.
func bytesProgress(w io.Writer, total int64) *progress {
	if !isTerminal(w) {
		return nil
	}
	return &progress{total: total, options: []progressbar.Option{
		progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionShowBytes(true), progressbar.OptionShowTotalBytes(true), progressbar.OptionSetElapsedTime(true),
	}}
}

// add tells that n more are done. What the terminal answers does not matter to the work.
func (p *progress) add(n int) { p.addBytes(int64(n)) }

func (p *progress) addBytes(n int64) {
	if p == nil {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(p.total, p.options...)
	}
	_ = p.bar.Add64(n)
}

// end takes the bar away.
func (p *progress) end() {
	if p != nil && p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}
