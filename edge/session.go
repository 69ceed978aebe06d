package edge

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"
)

// A Session lets a caller show its token once. The server keeps no list of sessions: nothing needs
// a bound, is lost by a restart, or has to be shared among nodes. The ticket itself has the token
// and the end of the session, sealed with a key that is made of the token's digest. That has these
// consequences:
//
//   - Every server that has the token accepts the ticket, so that nodes behind a load balancer do.
//   - A token that is removed or replaced ends its sessions at once: no key opens the ticket.
//   - Knowledge of the settings is not enough to forge a session. What is sealed must have the
//     digest that the settings hold, so it must be the token.
//   - A stolen ticket serves until its end, also after a logout, but does not tell the token. A
//     browser sends cookies to all ports of a host, so that a token in plain text would be shown
//     to every other server on the machine.
type Session struct {
	Caller *Caller
	Ticket string    // its text, which is safe in a cookie
	Ends   time.Time // when it must be begun again
}

const (
	// MaxSessionToken bounds the token of a session, in bytes.
	MaxSessionToken = 1 << 10
	maxTicket       = 2 << 10 // bytes of a ticket that is opened
)

// Begin makes a session of the caller, whose token has this text: the server does not know it
// otherwise. The ticket is
//
//	<name> "." base64url( nonce, sealed( 8 bytes: end in seconds of Unix time; text ) )
func (c *Caller) Begin(text string, ends time.Time) *Session {
	ends = ends.Truncate(time.Second)
	plain := binary.BigEndian.AppendUint64(nil, uint64(ends.Unix()))
	sealed := c.sealer().Seal(nil, nil, append(plain, text...), []byte(c.Name))
	return &Session{c, c.Name + "." + base64.RawURLEncoding.EncodeToString(sealed), ends}
}

// Open returns the session of a ticket; nil if no token of today opens it, or it has ended.
func (s *Callers) Open(ticket string, now time.Time) *Session {
	dot := strings.LastIndexByte(ticket, '.')
	if dot < 0 || len(ticket) > maxTicket {
		return nil
	}
	sealed, err := base64.RawURLEncoding.DecodeString(ticket[dot+1:])
	if err != nil {
		return nil
	}
	for _, c := range *s.all.Load() {
		if c.Name != ticket[:dot] {
			continue
		}
		plain, err := c.sealer().Open(nil, nil, sealed, []byte(c.Name))
		if err != nil || len(plain) < 8 {
			return nil
		}
		ends := time.Unix(int64(binary.BigEndian.Uint64(plain)), 0)
		// Knowledge of the digest is enough to seal a ticket. What is sealed must be the token.
		if s.Find(DigestOf(string(plain[8:]))) != c || !now.Before(ends) {
			return nil
		}
		return &Session{c, ticket, ends}
	}
	return nil
}

// Proof returns the text that a page must send beside the ticket of its session to change
// something. Only pages of the same origin can read it.
func (s *Session) Proof() string {
	mac := hmac.New(sha256.New, s.Caller.secret("lapse csrf 1"))
	mac.Write([]byte(s.Ticket))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Proves reports whether a text is the proof of the session.
func (s *Session) Proves(text string) bool { return hmac.Equal([]byte(text), []byte(s.Proof())) }

// sealer returns what seals the sessions of a caller.
func (c *Caller) sealer() cipher.AEAD {
	block, err := aes.NewCipher(c.secret("lapse session 1"))
	if err != nil {
		panic(err) // the key has the right size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // the block has the right size
	}
	return aead
}

// secret derives a key from the digest of the token.
func (c *Caller) secret(use string) []byte {
	key, err := hkdf.Key(sha256.New, c.SHA256[:], nil, use, sha256.Size)
	if err != nil {
		panic(err) // the length is one that HKDF can make
	}
	return key
}
