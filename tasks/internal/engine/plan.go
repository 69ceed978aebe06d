package engine

import (
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// A StaleEntry is a directory entry whose task no longer exists: its shard is held here, where
// the task would be known, or by no node. The zero StaleEntry stands for none.
type StaleEntry struct {
	recovery.DirectoryEntry
	Vacant bool // no node holds the shard
}

// A Plan is a request that has been checked, with the record that it makes.
type Plan struct {
	ID       string
	Topic    string
	Chosen   bool // the caller chose the id
	NotFound NotFoundProof
	ShardID  recovery.ShardID // that the id tells, if a node holds it
	Stale    StaleEntry
	Rec      []byte
	Print    uint64 // fingerprint
	Next     int64
	Spool    bool    // the ledger did not take it
	Buf      *[]byte // of rec, from buffers
	By       Admission
}

// Buffers lends the memory in which records are put together.
var Buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// Release gives the memory of the record back.
func (p *Plan) Release() {
	if p.Buf != nil && cap(p.Rec) <= 64<<10 {
		*p.Buf = p.Rec[:0]
		Buffers.Put(p.Buf)
	}
	p.Buf, p.Rec = nil, nil
}
