package wheel

import (
	"bytes"
	"runtime"
	"strconv"
)

// Close stops the Runner, forgets what waits, and returns when no Fire is running
// and none will be called. Then, and from the moment it is called, Add returns
// the zero Timer. It may be called more than once.
//
// Called by Fire itself, it cannot wait for Fire: it returns at once, and no
// further batch is fired after those that are being fired. Fire must not wait
// for another goroutine that is in Close.
func (r *Runner) Close() {
	self := goroutineID()
	r.mu.Lock()
	if !r.closed {
		// The order: first refuse new work, and with it every Offer, which
		// would hang without the poller; then tell poller and loop to exit.
		// Each of them waits for exit wherever it waits for the other. A loop
		// that is firing finds closed when it comes for the next batch.
		r.closed = true
		r.wheel = nil
		close(r.exit)
	}
	byFire := r.firing[self] > 0
	r.mu.Unlock()
	if !byFire {
		r.running.Wait()
	}
}

// goroutineID identifies the calling goroutine. Go has no official way, and a
// Close called by Fire can be told from one that should wait for Fire in no
// other way. The first line of a stack trace has had this form since Go 1.0.
func goroutineID() int64 {
	var buf [64]byte
	trace := buf[:runtime.Stack(buf[:], false)]
	trace = bytes.TrimPrefix(trace, []byte("goroutine "))
	digits, _, _ := bytes.Cut(trace, []byte(" "))
	id, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil {
		panic("wheel: cannot read the goroutine's number: " + err.Error())
	}
	return id
}
