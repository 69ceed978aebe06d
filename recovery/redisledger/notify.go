package redisledger

import "github.com/lapsehq/lapse/recovery"

// notify queues a notice for the notifier, which delivers notices in their order.
func (l *Ledger) notify(notice func(w recovery.Watcher)) {
	l.mu.Lock()
	l.notices = append(l.notices, notice)
	l.mu.Unlock()
	select {
	case l.notified <- struct{}{}:
	default:
	}
}

// notifier calls memory back, without a lock and from a goroutine of its own: however long memory
// takes, this process sends heartbeats and watches the other nodes.
func (l *Ledger) notifier() {
	for {
		select {
		case <-l.life.Done():
			return
		case <-l.notified:
			l.deliverNotices()
		}
	}
}

func (l *Ledger) deliverNotices() {
	l.mu.Lock()
	notices, w := l.notices, l.watcher
	l.notices = nil
	l.mu.Unlock()
	for _, deliver := range notices {
		if l.life.Err() != nil {
			return
		}
		deliver(w)
	}
}

// Watch implements recovery.Rewinder.
func (l *Ledger) Watch(w recovery.Watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watcher = w
}

// askStatus queues a call for memory's status. The heartbeat after that sends it.
func (l *Ledger) askStatus() {
	l.mu.Lock()
	ask := l.watcher.Status != nil && !l.statusAsked
	l.statusAsked = l.statusAsked || ask
	l.mu.Unlock()
	if !ask {
		return
	}
	l.notify(func(w recovery.Watcher) {
		var status []byte
		if w.Status != nil { // the watcher may have been replaced since
			status = w.Status()
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.status, l.statusAsked = string(status), false
	})
}

// doubtedDirectory notifies memory that the directory may have lost entries.
func (l *Ledger) doubtedDirectory() {
	l.notify(func(w recovery.Watcher) {
		if w.Doubted != nil {
			w.Doubted()
		}
	})
}
