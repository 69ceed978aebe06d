package redisledger

import "github.com/lapsehq/lapse/recovery"

// tell keeps news for the teller, which passes them on in their order.
func (l *Ledger) tell(news func(w recovery.Watcher)) {
	l.mu.Lock()
	l.news = append(l.news, news)
	l.mu.Unlock()
	select {
	case l.told <- struct{}{}:
	default:
	}
}

// teller calls memory back, without a lock, and from a goroutine of its own: however
// long memory takes, this process shows signs of life and watches the others.
func (l *Ledger) teller() {
	for {
		select {
		case <-l.life.Done():
			return
		case <-l.told:
			l.passOn()
		}
	}
}

func (l *Ledger) passOn() {
	l.mu.Lock()
	news, w := l.news, l.watcher
	l.news = nil
	l.mu.Unlock()
	for _, pass := range news {
		if l.life.Err() != nil {
			return
		}
		pass(w)
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
	ask := l.watcher.Status != nil && !l.asking
	l.asking = l.asking || ask
	l.mu.Unlock()
	if !ask {
		return
	}
	l.tell(func(w recovery.Watcher) {
		var status []byte
		if w.Status != nil { // another watcher may have taken the place of the one that was asked
			status = w.Status()
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.status, l.asking = string(status), false
	})
}
