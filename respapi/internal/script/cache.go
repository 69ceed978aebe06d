package script

import (
	"container/list"
	"crypto/sha1" // by which clients of Redis name scripts
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	lua "github.com/yuin/gopher-lua"
)

// Bounds of scripts.
const (
	MaxText     = 64 << 10 // bytes of one
	mostCached  = 1000     // scripts that are kept
	mostKept    = 2 << 20  // bytes of their texts
	digestBytes = 2 * sha1.Size
)

// A Script is a text that was compiled. It is safe for concurrent use.
type Script struct {
	Digest string // SHA-1 of the text, in hexadecimal digits
	size   int
	proto  *lua.FunctionProto
}

// A Cache keeps the scripts that were used last, at most 1000 of them, with 2 MiB of text. It is
// safe for concurrent use.
type Cache struct {
	compiling sync.Mutex // one script is compiled at a time

	mu      sync.Mutex // guards everything below
	scripts map[string]*list.Element
	recent  list.List // of *Script; the one that was used last comes first
	bytes   int
}

// NewCache returns a cache without scripts.
func NewCache() *Cache { return &Cache{scripts: make(map[string]*list.Element)} }

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
// cannot be compiled.
func (c *Cache) Get(text []byte) (*Script, error) {
	sum := sha1.Sum(text)
	digest := hex.EncodeToString(sum[:])
	if s := c.Find([]byte(digest)); s != nil {
		return s, nil
	}
	if len(text) > MaxText {
		return nil, fmt.Errorf("a script must be at most %d bytes long, this one has %d", MaxText, len(text))
	}
	c.compiling.Lock()
	defer c.compiling.Unlock()
	if s := c.Find([]byte(digest)); s != nil {
		return s, nil
	}
	proto, err := compile(string(text))
	if err != nil {
		return nil, err
	}
	s := &Script{digest, len(text), proto}
	c.keep(s)
	return s, nil
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
