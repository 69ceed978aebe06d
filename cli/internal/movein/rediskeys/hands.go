package rediskeys

import "sync"

// mostChanged bounds the keys that wait to be read again. Past it, all are scanned.
const mostChanged = 1 << 20

// hands says which keys a scan has in its hands, and which have changed since they were read.
type hands struct {
	wake chan struct{} // has an element when there may be something to take, or events were lost

	mu      sync.Mutex // guards everything below
	active  bool       // the source is followed
	held    map[string]int
	changed map[string]bool // whether the last that was heard of the key is that it was evicted
	lost    bool            // notifications may have been lost
}

func newHands() *hands {
	return &hands{wake: make(chan struct{}, 1), held: make(map[string]int), changed: make(map[string]bool)}
}

// activate makes hold and note work: without a caller of take they would only gather.
func (h *hands) activate() {
	h.mu.Lock()
	h.active = true
	h.mu.Unlock()
}

// hold keeps the changes of keys from being taken until they are released.
func (h *hands) hold(keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.active {
		return
	}
	for _, key := range keys {
		h.held[key]++
	}
}

func (h *hands) release(all []deadline) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.active {
		return
	}
	for i := range all {
		if n := h.held[all[i].key]; n > 1 {
			h.held[all[i].key] = n - 1
		} else {
			delete(h.held, all[i].key)
		}
	}
	h.wakeLocked()
}

// note says that a key has changed.
func (h *hands) note(key string, evicted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, there := h.changed[key]; !there && len(h.changed) >= mostChanged {
		h.lost = true
	} else {
		h.changed[key] = evicted
	}
	h.wakeLocked()
}

// lose says that notifications may have been lost.
func (h *hands) lose() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = true
	h.wakeLocked()
}

// takeLost reports whether notifications may have been lost since it was last called.
func (h *hands) takeLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.lost
	h.lost = false
	return was
}

// take returns up to n changed keys that no scan holds.
func (h *hands) take(n int) map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string]bool)
	for key, evicted := range h.changed {
		if len(all) == n {
			break
		}
		if h.held[key] == 0 {
			all[key] = evicted
			delete(h.changed, key)
		}
	}
	return all
}

func (h *hands) wakeLocked() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}
