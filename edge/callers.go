package edge

import (
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lapsehq/lapse/tasks"
)

// ErrWithdrawn is the cause of the end of a Caller's life.
var ErrWithdrawn = errors.New("the token was removed, or has other rights now")

// A Caller is the bearer of a token, with the rights that the token has. It does not change: a
// token that gets other rights is another Caller.
type Caller struct {
	Token
	Rights Rights
	Grant  *tasks.Grant // the limits of its calls; nil: none

	life context.Context
	end  context.CancelCauseFunc
}

// Anyone is the caller of a server without tokens.
var Anyone = &Caller{Token: Token{Name: "default"}, Rights: AnyRight, life: context.Background(), end: func(error) {}}

func newCaller(t Token) *Caller {
	t.Scopes, t.Topics = slices.Clone(t.Scopes), slices.Clone(t.Topics)
	c := &Caller{Token: t, Rights: RightsOf(t.Scopes), Grant: t.grant()}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// Life returns a context that ends with the cause ErrWithdrawn when the caller loses its rights, or
// gets others. What waits on behalf of the caller ends with it.
func (c *Caller) Life() context.Context { return c.life }

// Withdrawn reports whether the life of the caller has ended.
func (c *Caller) Withdrawn() bool { return c.life.Err() != nil }

// Within returns a context of the caller's calls: its limits are in it.
func (c *Caller) Within(ctx context.Context) context.Context {
	if c.Grant == nil {
		return ctx
	}
	return tasks.WithGrant(ctx, c.Grant)
}

// MayUse reports whether the caller may use a topic, and learn how many tasks it has.
func (c *Caller) MayUse(topic string) bool { return c.Grant.Allows(topic) }

// MayUseAll reports whether the caller may use all topics.
func (c *Caller) MayUseAll() bool {
	return c.Grant == nil || len(c.Grant.Topics) == 0 || slices.Contains(c.Grant.Topics, "*")
}

// Callers are those that a server knows, by their tokens. A nil *Callers is that of a server
// without tokens. It is safe for concurrent use.
type Callers struct {
	// Log gets a line when a token is shown that is unknown: at most one a minute for each of five
	// addresses. Nil means slog.Default(). It must not change once callers come.
	Log *slog.Logger

	mu      sync.Mutex // one Set at a time
	all     atomic.Pointer[[]*Caller]
	guesses guesses
}

// NewCallers returns the callers with these tokens. Error: that of CheckTokens.
func NewCallers(tokens []Token) (*Callers, error) {
	s := &Callers{}
	s.all.Store(new([]*Caller))
	return s, s.Set(tokens)
}

// Set replaces the tokens, of which there must be at least one. The lives of the callers end whose
// tokens are not among them, or have other rights there. On an error, which is that of CheckTokens,
// nothing was changed.
func (s *Callers) Set(tokens []Token) error {
	if err := CheckTokens(tokens); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := *s.all.Load()
	after := make([]*Caller, len(tokens))
	for i, t := range tokens {
		if at := slices.IndexFunc(before, func(c *Caller) bool { return c.Equal(&t) }); at >= 0 {
			after[i] = before[at]
		} else {
			after[i] = newCaller(t)
		}
	}
	s.all.Store(&after)
	for _, c := range before {
		if !slices.Contains(after, c) {
			c.end(ErrWithdrawn)
		}
	}
	return nil
}

// Find returns the caller whose token has this digest; nil if there is none. It takes the same time
// in every case.
func (s *Callers) Find(digest Digest) *Caller {
	all := *s.all.Load()
	found := -1
	for i, c := range all {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], c.SHA256[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	return all[found]
}

// OnRemoval calls f once the token of a caller is none any more, also if it is none already. f does
// not run any more when stop has returned, and must not call it.
func (s *Callers) OnRemoval(c *Caller, f func()) (stop func()) {
	var mu sync.Mutex // guards what follows
	over, unfollow := false, func() bool { return true }
	var follow func(*Caller)
	follow = func(c *Caller) {
		mu.Lock()
		defer mu.Unlock()
		switch now := s.Now(c); {
		case over:
		case now == nil:
			over = true
			f()
		default: // perhaps with other rights
			unfollow = context.AfterFunc(now.life, func() { follow(now) })
		}
	}
	follow(c)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		unfollow()
	}
}

// Now returns the caller that has the token of another one now; nil if there is none any more.
func (s *Callers) Now(c *Caller) *Caller {
	if s == nil || !c.Withdrawn() {
		return c
	}
	return s.Find(c.SHA256)
}
