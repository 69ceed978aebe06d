package script

import (
	"container/list"
	"context"
	"crypto/sha1" // by which clients of Redis name scripts
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	lua "github.com/yuin/gopher-lua"
)

// Bounds of scripts.
const (
	MaxText     = 64 << 10 // bytes of one
	mostCached  = 1000     // scripts that are kept
	mostKept    = 16 << 20 // bytes that they take
	compileWait = 5 * time.Second
	digestBytes = 2 * sha1.Size
)

// A Script is a text that was compiled. It is safe for concurrent use.
type Script struct {
	Digest string // SHA-1 of the text, in hexadecimal digits
	size   int    // bytes that it takes
	proto  *lua.FunctionProto
}

// A Cache keeps the scripts that were used last, at most 1000 of them, which take up to 16 MiB. It
// is safe for concurrent use.
type Cache struct {
	compiling chan struct{} // one script is compiled at a time

	mu      sync.Mutex // guards everything below
	scripts map[string]*list.Element
	recent  list.List // of *Script; the one that was used last comes first
	bytes   int
}

// NewCache returns a cache without scripts.
func NewCache() *Cache {
	return &Cache{compiling: make(chan struct{}, 1), scripts: make(map[string]*list.Element)}
}

// ErrBusy is returned for a script that was not compiled, since too many others are.
var ErrBusy = errors.New("too many scripts are compiled at the moment; nothing was done")

// Find returns the script with a digest, whatever its letters are; nil: there is none.
func (c *Cache) Find(digest []byte) *Script {
	if len(digest) != digestBytes {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.scripts[strings.ToLower(string(digest))]
	if e == nil {
		return nil
	}
	c.recent.MoveToFront(e)
	return e.Value.(*Script)
}

// Get returns the script with a text, which it keeps. Errors: the text is longer than MaxText, or
// cannot be compiled; ErrBusy; why ctx has ended.
func (c *Cache) Get(ctx context.Context, text []byte) (*Script, error) {
	sum := sha1.Sum(text)
	digest := hex.EncodeToString(sum[:])
	if s := c.Find([]byte(digest)); s != nil {
		return s, nil
	}
	if len(text) > MaxText {
		return nil, fmt.Errorf("a script must be at most %d bytes long, this one has %d", MaxText, len(text))
	}
	timer := time.NewTimer(compileWait)
	defer timer.Stop()
	select {
	case c.compiling <- struct{}{}:
		defer func() { <-c.compiling }()
	case <-timer.C:
		return nil, ErrBusy
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if s := c.Find([]byte(digest)); s != nil {
		return s, nil
	}
	proto, err := compile(string(text))
	if err != nil {
		return nil, err
	}
	s := &Script{digest, len(text) + sizeOf(proto), proto}
	c.keep(s)
	return s, nil
}

// sizeOf returns about how many bytes a function takes, with those within it.
func sizeOf(p *lua.FunctionProto) int {
	n := 512 + 4*len(p.Code) + 48*len(p.Constants) + 8*len(p.DbgSourcePositions) + 64*len(p.DbgLocals) + 32*len(p.DbgCalls) + 32*len(p.DbgUpvalues)
	for _, inner := range p.FunctionPrototypes {
		n += sizeOf(inner)
	}
	return n
}

func (c *Cache) keep(s *Script) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scripts[s.Digest] = c.recent.PushFront(s)
	for c.bytes += s.size; len(c.scripts) > mostCached || c.bytes > mostKept; {
		old := c.recent.Remove(c.recent.Back()).(*Script)
		delete(c.scripts, old.Digest)
		c.bytes -= old.size
	}
}

// Forget drops all scripts.
func (c *Cache) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recent.Init()
	clear(c.scripts)
	c.bytes = 0
}

// Len returns how many scripts are kept.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.scripts)
}
