package redisledger

import "github.com/lapsehq/lapse/recovery"

// tell keeps news for the notifier, which passes them on in their order.
func (l *Ledger) notify(notice func(w recovery.Watcher)) {
	l.mu.Lock()
	l.notices = append(l.notices, notice)
	l.mu.Unlock()
	select {
	case l.notified <- struct{}{}:
	default:
	}
}

// notifier calls memory back, without a lock, and from a goroutine of its own: however
// long memory takes, this process shows signs of life and watches the others.
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

// askStatus has memory asked for what others should know of it. It goes with the life
// sign after that.
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
		if w.Status != nil { // another watcher may have taken the place of the one that was asked
			status = w.Status()
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.status, l.statusAsked = string(status), false
	})
}
