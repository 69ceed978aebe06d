// Package logline writes the lines of a log without ever waiting for their reader.
//
// It owns the lines that are not written yet, and their bound. It calls no package of Lapse.
//
//	slog -> Writer.Write: a copy into the queue -> one goroutine -> standard error
//
// Who reads standard error may stand still: a pipe that is not read, a terminal that is stopped, a
// full disk. The program goes on. Lines beyond the bound are dropped and counted, and the log says
// how many once it goes on.
package logline

import (
	"io"
	"sync"
	"time"
)

// Bounds of the lines that wait.
const (
	mostBytes = 1 << 20
	mostLines = 10_000
)

// A Writer is an io.Writer that keeps lines until they are written. It is safe for concurrent use.
type Writer struct {
	to   io.Writer
	tell func(to io.Writer, dropped int64)
	wake chan struct{}
	done chan struct{} // closed once the last line is written after Close

	mu      sync.Mutex // guards everything below
	lines   [][]byte
	count   int   // lines that are not written, with those that are being written
	bytes   int   // of them
	dropped int64 // since the start
	untold  int64 // of those, what the log does not say yet
	closed  bool
}

// New returns a Writer whose lines go to another one. tell writes there how many were dropped.
func New(to io.Writer, tell func(to io.Writer, dropped int64)) *Writer {
	w := &Writer{to: to, tell: tell, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go w.run()
	return w
}

// Write keeps a line. It never waits and never fails: a line without room is dropped.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	if w.count >= mostLines || w.bytes+len(line) > mostBytes || w.closed {
		w.drop(1)
	} else {
		w.lines = append(w.lines, append([]byte(nil), line...))
		w.count++
		w.bytes += len(line)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return len(line), nil
}

// drop counts lines that are not written. mu is held.
func (w *Writer) drop(lines int64) {
	w.dropped += lines
	w.untold += lines
}

// Dropped returns how many lines were not written since the start.
func (w *Writer) Dropped() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}

// Close waits until all lines are written, but no longer than within. Lines that come later are
// dropped.
func (w *Writer) Close(within time.Duration) {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	}
}

// next takes the lines that wait. It reports false once there are none and no more will come.
func (w *Writer) next() (lines [][]byte, untold int64, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines, untold = w.lines, w.untold
	w.lines, w.untold = nil, 0
	return lines, untold, len(lines) > 0 || untold > 0 || !w.closed
}

func (w *Writer) run() {
	defer close(w.done)
	for range w.wake {
		for {
			lines, untold, more := w.next()
			if !more {
				return
			}
			if len(lines) == 0 && untold == 0 {
				break
			}
			w.put(lines, untold)
		}
	}
}

// put writes lines, and how many were dropped behind them. What cannot be written is dropped.
func (w *Writer) put(lines [][]byte, untold int64) {
	for _, line := range lines {
		_, err := w.to.Write(line)
		w.mu.Lock()
		w.count--
		w.bytes -= len(line)
		if err != nil {
			w.dropped++ // of which the log cannot tell
		}
		w.mu.Unlock()
	}
	if untold > 0 {
		w.tell(w.to, untold)
	}
}
