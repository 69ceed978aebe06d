package edge

import (
	"errors"
	"sync"
)

// Why Places.Begin has no place.
var (
	ErrFull      = errors.New("all places are taken")
	ErrTokenFull = errors.New("all places of this token are taken")
)

// Places bounds how many of something callers have at the same moment, in all and of each token. It
// is safe for concurrent use.
type Places struct {
	limit, perToken int

	mu    sync.Mutex // guards everything below
	taken int
	of    map[string]int // by token name; callers without one count in taken only
}

// NewPlaces returns so many places, of which one token may have so many.
func NewPlaces(limit, perToken int) *Places {
	return &Places{limit: limit, perToken: perToken, of: make(map[string]int)}
}

// Begin takes a place for a caller; nil and Anyone have no token. If it returns nil, End must be
// called. Errors: ErrFull, ErrTokenFull.
func (p *Places) Begin(c *Caller) error {
	token := nameOf(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.taken >= p.limit:
		return ErrFull
	case token != "" && p.of[token] >= p.perToken:
		return ErrTokenFull
	}
	p.taken++
	if token != "" {
		p.of[token]++
	}
	return nil
}

// nameOf returns the name of a caller's token; "" if it has none.
func nameOf(c *Caller) string {
	if c == nil || c == Anyone {
		return ""
	}
	return c.Name
}

// End frees a place.
func (p *Places) End(c *Caller) {
	token := nameOf(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if token == "" {
		return
	}
	if p.of[token]--; p.of[token] == 0 {
		delete(p.of, token)
	}
}

// Count returns how many places are taken, and by how many tokens.
func (p *Places) Count() (taken, tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken, len(p.of)
}
