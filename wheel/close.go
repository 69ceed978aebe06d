package wheel

// Close stops the Runner, forgets what waits, and returns when no Fire is running
// and none will be called. Then, and from the moment it is called, Add returns
// the zero Timer. It may be called more than once.
//
// Fire must not call it, nor wait for a goroutine that does: it would wait for
// itself.
func (r *Runner) Close() {
	r.mu.Lock()
	if !r.closed {
		// The order: first refuse new work, and with it every Offer, which
		// would hang without the poller; then tell poller and loop to exit.
		// Each of them waits for exit wherever it waits for the other. A loop
		// that is firing finds closed when it comes for the next batch.
		r.closed = true
		r.wheel = nil
		r.beatLocked()
		close(r.exit)
	}
	r.mu.Unlock()
	r.running.Wait()
}
