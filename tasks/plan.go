package tasks

import (
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// A staleEntry is a directory entry whose task no longer exists: its shard is held here, where
// the task would be known, or by no node. The zero staleEntry stands for none.
type staleEntry struct {
	recovery.Filing
	vacant bool // no node holds the shard
}

// A plan is a request that has been checked, with the record that it makes.
type plan struct {
	id       string
	topic    string
	chosen   bool // the caller chose the id
	notFound notFoundProof
	shardID  recovery.Home // that the id tells, if a node holds it
	stale    staleEntry
	rec      []byte
	print    uint64 // fingerprint
	next     int64
	spool    bool    // the ledger did not take it
	buf      *[]byte // of rec, from buffers
	by       admission
}

// buffers lends the memory in which records are put together.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

func (p *plan) release() {
	if p.buf != nil && cap(p.rec) <= 64<<10 {
		*p.buf = p.rec[:0]
		buffers.Put(p.buf)
	}
	p.buf, p.rec = nil, nil
}
