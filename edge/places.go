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
	of    byToken[int]
}

// NewPlaces returns so many places, of which one token may have so many.
func NewPlaces(limit, perToken int) *Places {
	return &Places{limit: limit, perToken: perToken, of: make(byToken[int])}
}

// Begin takes a place for a caller; nil and Anyone have no token. If it returns nil, End must be
// called. Errors: ErrFull, ErrTokenFull.
func (p *Places) Begin(c *Caller) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.taken >= p.limit:
		return ErrFull
	case p.of[nameOf(c)] >= p.perToken:
		return ErrTokenFull
	}
	p.taken++
	p.of.add(c, 1)
	return nil
}

// End frees a place.
func (p *Places) End(c *Caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	p.of.add(c, -1)
}

// Count returns how many places are taken, and by how many tokens.
func (p *Places) Count() (taken, tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken, len(p.of)
}

// byToken are figures by the names of tokens. Those of callers without a token are left out.
type byToken[N int | int64] map[string]N

func (t byToken[N]) add(c *Caller, n N) {
	token := nameOf(c)
	if token == "" {
		return
	}
	if t[token] += n; t[token] == 0 {
		delete(t, token)
	}
}

// nameOf returns the name of a caller's token; "" if it has none.
func nameOf(c *Caller) string {
	if c == nil || c == Anyone {
		return ""
	}
	return c.Name
}
