package httpapi

import "sync"

// Bounds of Config.MaxWaiting and MaxWaitingPerToken, and their defaults.
const (
	MostMaxWaiting         = 1_000_000
	usualWaiting           = 10_000
	usualWaitingOfOneToken = 5_000
)

// polls counts the reserves that wait for tasks. The bound of connections does not bound them,
// since one HTTP/2 connection carries many.
type polls struct {
	limit, perToken int

	mu      sync.Mutex     // guards everything below
	waiting int            // of all callers
	of      map[string]int // by token name; callers without one count in waiting only
}

// begin takes a place for a poll of a token, "" for none. If all places are taken, it returns the
// reason.
func (p *polls) begin(token string) (full string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.waiting >= p.limit:
		return "too many reserves wait for tasks (max_waiting)"
	case token != "" && p.of[token] >= p.perToken:
		return "too many reserves of this token wait for tasks (max_waiting_per_token)"
	}
	p.waiting++
	if token != "" {
		p.of[token]++
	}
	return ""
}

// end frees a place.
func (p *polls) end(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
	if token == "" {
		return
	}
	if p.of[token]--; p.of[token] == 0 {
		delete(p.of, token)
	}
}
