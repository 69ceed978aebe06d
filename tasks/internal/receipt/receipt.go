// Package receipt signs and reads the texts that settle deliveries.
//
// It owns the form of a receipt and the key, which it keeps in the settings of the ledger. It
// calls that ledger and package task. What can fail: the ledger does not answer, or a text is no
// receipt of this data set (task.ErrReceipt).
package receipt

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"strings"
	"sync"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Receipt names one delivery. As text it is URL-safe base64 of
//
//	0   1  version, 2
//	1   4  recovery.ShardID of the task's shard; 0 if the ledger knows none
//	5   4  attempt
//	9   4  revision of the task
//	13  8  when the task was created
//	21  8  nonce
//	29     id
//	end 12 the first 12 bytes of HMAC-SHA256 (RFC 2104) over all before
//
// integers little-endian. The key is kept in the ledger, so that a receipt counts
// after a restart and at another node too, and is refused by another data set.
//
// Version 1 had the shard's number at its node in 2 bytes instead of that. It is still
// accepted; whose the task is has to be found by its id.
type Receipt struct {
	ShardID recovery.ShardID
	Attempt uint32
	// Revision and time of creation tell the task from one that has taken its
	// place, or its id, since.
	Revision uint32
	Created  int64
	Nonce    uint64
	ID       string
}

const (
	receiptVersion = 2
	receiptHead    = 29
	receiptHead1   = 27 // of version 1
	receiptMAC     = 12
	receiptKeyName = "receipt-key"
)

// A Signer makes and checks receipts.
type Signer struct {
	key  []byte
	macs sync.Pool
}

// NewSigner returns the signer with this key.
func NewSigner(key []byte) *Signer {
	g := &Signer{key: bytes.Clone(key)}
	g.macs.New = func() any { return hmac.New(sha256.New, key) }
	return g
}

// Load reads the key from the ledger, or makes one there. A ledger without settings gets a
// key that ends with this process.
func Load(ctx context.Context, ledger recovery.Ledger) (*Signer, error) {
	fresh := make([]byte, 32)
	if _, err := rand.Read(fresh); err != nil {
		return nil, err
	}
	settings, ok := ledger.(recovery.Settings)
	if !ok {
		return NewSigner(fresh), nil
	}
	for {
		key, revision, err := settings.Setting(ctx, receiptKeyName)
		if err != nil {
			return nil, err
		}
		if revision != 0 && len(key) == len(fresh) {
			return NewSigner(key), nil
		}
		_, err = settings.PutSetting(ctx, receiptKeyName, revision, fresh)
		if err != nil && !errors.Is(err, recovery.ErrConflict) {
			return nil, err
		}
	}
}

// Lost reports whether the ledger has another key, or none. The key is never deleted: then the
// ledger has lost its settings.
func (g *Signer) Lost(ctx context.Context, settings recovery.Settings) (bool, error) {
	key, _, err := settings.Setting(ctx, receiptKeyName)
	return !bytes.Equal(key, g.key), err
}

// Restore writes the key again if the ledger has lost it, and reports whether it had.
func (g *Signer) Restore(ctx context.Context, settings recovery.Settings) (bool, error) {
	key, revision, err := settings.Setting(ctx, receiptKeyName)
	if err != nil || bytes.Equal(key, g.key) {
		return false, err
	}
	_, err = settings.PutSetting(ctx, receiptKeyName, revision, g.key)
	return err == nil, err
}

// MAC appends the code of text to dst.
func (g *Signer) MAC(dst, text []byte) []byte {
	m := g.macs.Get().(hash.Hash)
	m.Reset()
	m.Write(text)
	var sum [sha256.Size]byte
	dst = append(dst, m.Sum(sum[:0])[:receiptMAC]...)
	g.macs.Put(m)
	return dst
}

// Sign writes a receipt down.
func (g *Signer) Sign(r *Receipt) string {
	b := make([]byte, 0, receiptHead+task.MaxIDBytes+receiptMAC)
	b = append(b, receiptVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.ShardID))
	b = binary.LittleEndian.AppendUint32(b, r.Attempt)
	b = binary.LittleEndian.AppendUint32(b, r.Revision)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Created))
	b = binary.LittleEndian.AppendUint64(b, r.Nonce)
	b = append(b, r.ID...)
	return base64.RawURLEncoding.EncodeToString(g.MAC(b, b))
}

// Parse reads a receipt. It returns ErrReceipt for anything that Sign has not made.
func (g *Signer) Parse(text string) (Receipt, error) {
	const longest = receiptHead + task.MaxIDBytes + receiptMAC
	if len(text) > base64.RawURLEncoding.EncodedLen(longest) {
		return Receipt{}, fmt.Errorf("%w: too long", task.ErrReceipt)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	// Line ends are passed over even by the strict decoder.
	head := receiptHead
	if len(b) > 0 && b[0] == 1 {
		head = receiptHead1
	}
	if err != nil || len(b) <= head+receiptMAC || b[0] == 0 || b[0] > receiptVersion || strings.ContainsAny(text, "\r\n") {
		return Receipt{}, fmt.Errorf("%w: not the form of one", task.ErrReceipt)
	}
	body, mac := b[:len(b)-receiptMAC], b[len(b)-receiptMAC:]
	if !hmac.Equal(mac, g.MAC(nil, body)) {
		return Receipt{}, fmt.Errorf("%w: not signed here", task.ErrReceipt)
	}
	r := Receipt{ID: string(body[head:])}
	if head == receiptHead {
		r.ShardID = recovery.ShardID(binary.LittleEndian.Uint32(body[1:]))
	}
	rest := body[head-24:]
	r.Attempt = binary.LittleEndian.Uint32(rest)
	r.Revision = binary.LittleEndian.Uint32(rest[4:])
	r.Created = int64(binary.LittleEndian.Uint64(rest[8:]))
	r.Nonce = binary.LittleEndian.Uint64(rest[16:])
	return r, nil
}
