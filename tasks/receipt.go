package tasks

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
)

// A receipt names one delivery. As text it is URL-safe base64 of
//
//	0   1  version, 2
//	1   4  recovery.Home of the task's shard; 0 if the ledger knows none
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
type receipt struct {
	shardID recovery.Home
	attempt uint32
	// Revision and time of creation tell the task from one that has taken its
	// place, or its id, since.
	revision uint32
	created  int64
	nonce    uint64
	id       string
}

const (
	receiptVersion = 2
	receiptHead    = 29
	receiptHead1   = 27 // of version 1
	receiptMAC     = 12
	receiptKeyName = "receipt-key"
)

// A signer makes and checks receipts.
type signer struct {
	key  []byte
	macs sync.Pool
}

func newSigner(key []byte) *signer {
	g := &signer{key: bytes.Clone(key)}
	g.macs.New = func() any { return hmac.New(sha256.New, key) }
	return g
}

// loadSigner reads the key from the ledger, or makes one there. A ledger without settings gets a
// key that ends with this process.
func loadSigner(ctx context.Context, ledger recovery.Ledger) (*signer, error) {
	fresh := make([]byte, 32)
	if _, err := rand.Read(fresh); err != nil {
		return nil, err
	}
	settings, ok := ledger.(recovery.Settings)
	if !ok {
		return newSigner(fresh), nil
	}
	for {
		key, revision, err := settings.Setting(ctx, receiptKeyName)
		if err != nil {
			return nil, err
		}
		if revision != 0 && len(key) == len(fresh) {
			return newSigner(key), nil
		}
		_, err = settings.PutSetting(ctx, receiptKeyName, revision, fresh)
		if err != nil && !errors.Is(err, recovery.ErrConflict) {
			return nil, err
		}
	}
}

// lost reports whether the ledger has another key, or none. The key is never deleted: then the
// ledger has lost its settings.
func (g *signer) lost(ctx context.Context, settings recovery.Settings) (bool, error) {
	key, _, err := settings.Setting(ctx, receiptKeyName)
	return !bytes.Equal(key, g.key), err
}

// restore writes the key again if the ledger has lost it, and reports whether it had.
func (g *signer) restore(ctx context.Context, settings recovery.Settings) (bool, error) {
	key, revision, err := settings.Setting(ctx, receiptKeyName)
	if err != nil || bytes.Equal(key, g.key) {
		return false, err
	}
	_, err = settings.PutSetting(ctx, receiptKeyName, revision, g.key)
	return err == nil, err
}

func (g *signer) mac(dst, text []byte) []byte {
	m := g.macs.Get().(hash.Hash)
	m.Reset()
	m.Write(text)
	var sum [sha256.Size]byte
	dst = append(dst, m.Sum(sum[:0])[:receiptMAC]...)
	g.macs.Put(m)
	return dst
}

// sign writes a receipt down.
func (g *signer) sign(r *receipt) string {
	b := make([]byte, 0, receiptHead+MaxIDBytes+receiptMAC)
	b = append(b, receiptVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.shardID))
	b = binary.LittleEndian.AppendUint32(b, r.attempt)
	b = binary.LittleEndian.AppendUint32(b, r.revision)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.created))
	b = binary.LittleEndian.AppendUint64(b, r.nonce)
	b = append(b, r.id...)
	return base64.RawURLEncoding.EncodeToString(g.mac(b, b))
}

// parse reads a receipt. It returns ErrReceipt for anything that sign has not made.
func (g *signer) parse(text string) (receipt, error) {
	const longest = receiptHead + MaxIDBytes + receiptMAC
	if len(text) > base64.RawURLEncoding.EncodedLen(longest) {
		return receipt{}, fmt.Errorf("%w: too long", ErrReceipt)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	// Line ends are passed over even by the strict decoder.
	head := receiptHead
	if len(b) > 0 && b[0] == 1 {
		head = receiptHead1
	}
	if err != nil || len(b) <= head+receiptMAC || b[0] == 0 || b[0] > receiptVersion || strings.ContainsAny(text, "\r\n") {
		return receipt{}, fmt.Errorf("%w: not the form of one", ErrReceipt)
	}
	body, mac := b[:len(b)-receiptMAC], b[len(b)-receiptMAC:]
	if !hmac.Equal(mac, g.mac(nil, body)) {
		return receipt{}, fmt.Errorf("%w: not signed here", ErrReceipt)
	}
	r := receipt{id: string(body[head:])}
	if head == receiptHead {
		r.shardID = recovery.Home(binary.LittleEndian.Uint32(body[1:]))
	}
	rest := body[head-24:]
	r.attempt = binary.LittleEndian.Uint32(rest)
	r.revision = binary.LittleEndian.Uint32(rest[4:])
	r.created = int64(binary.LittleEndian.Uint64(rest[8:]))
	r.nonce = binary.LittleEndian.Uint64(rest[16:])
	return r, nil
}
