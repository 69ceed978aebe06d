package layout

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// A Token says which process owns a shard: "<node>#<incarnation>#<epoch>". The epoch grows with
// every change of owner, so the higher one is the newer.
type Token struct {
	Node, Incarnation string
	Epoch             int64
}

// NewToken returns the token of a process with an epoch.
func NewToken(node, incarnation string, epoch int64) Token {
	return Token{node, incarnation, epoch}
}

// RetiredNode replaces the owner in the token of a shard that was retired.
const RetiredNode = "-"

func (t Token) String() string {
	return t.Node + "#" + t.Incarnation + "#" + strconv.FormatInt(t.Epoch, 10)
}

// Retired reports whether the token is that of a shard that was retired.
func (t Token) Retired() bool { return t.Node == RetiredNode }

// ParseToken reads a token; "" is that of a shard that has none, with epoch 0.
func ParseToken(s string) (Token, error) {
	if s == "" {
		return Token{}, nil
	}
	parts := strings.Split(s, "#")
	if len(parts) == 3 {
		if epoch, err := strconv.ParseInt(parts[2], 10, 64); err == nil {
			return Token{parts[0], parts[1], epoch}, nil
		}
	}
	return Token{}, fmt.Errorf("the owner token %q cannot be read", s)
}

// unreadableNode replaces the owner of a shard whose token cannot be read. No node has that
// name.
const unreadableNode = " "

// unreadableEpoch is the epoch of such a token. It is higher than any that nodes count up to, so
// that an earlier owner that comes back finds that it has lost the shard.
const unreadableEpoch = 1 << 40

// ReadToken is ParseToken for a value from Redis. If the token cannot be read, its bytes
// replace the incarnation of its owner.
func ReadToken(s string) Token {
	t, err := ParseToken(s)
	if err != nil {
		return Token{unreadableNode, s, unreadableEpoch}
	}
	return t
}

// Unreadable reports whether ReadToken could not read the token.
func (t Token) Unreadable() bool { return t.Node == unreadableNode }

// A Holder is one process as tokens name it.
type Holder struct{ Node, Incarnation string }

// Token returns the token of the process with an epoch.
func (h Holder) Token(epoch int64) Token { return Token{h.Node, h.Incarnation, epoch} }

// Holder returns the process that a token names.
func (t Token) Holder() Holder { return Holder{t.Node, t.Incarnation} }

// NewIncarnation makes a name for a process that no other one has.
func NewIncarnation() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
