package store

import (
	"encoding/binary"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/record"
)

// Burials are the records of tasks that are dead, or finished and kept, as far as memory has room
// for them. The ledger has all of them; if it loses some, these are written again. So an entry is
// about a burial that the ledger has confirmed, and stays until the task leaves the dead.
//
// What bounds the memory is bytes, not time. The oldest entries give way to new ones:
//
//	dead      is forgotten: without its payload it could not be requeued
//	finished  becomes brief: without payload, headers, attempts and target. Its fingerprint still
//	          tells whether a request for a task is repeated
//	brief     is forgotten
//
// Each of the three has a queue of its own, so that many finished tasks do not drive out the dead.
// A queue is a list of blocks of memory without pointers. An entry in a block:
//
//	0   8  hash of the id
//	8   4  shard
//	12  8  when it was added, on the monotonic clock
//	20  4  size of the record
//	24  1  length of the id
//	25     id, then the record
//
// Example: with 128 MiB a queue, 350,000 finished tasks with records of 300 bytes and ids of 20 are
// kept whole, and 900,000 older ones brief, with records of 60 bytes.
//
// It has no lock of its own.
type Burials struct {
	places map[uint64]place // by the hash of the id
	queues [burialQueues]burialQueue
}

// A Burial is an entry of Burials. Its slices are valid until the next change.
type Burial struct {
	Shard      uint32
	ID, Record []byte
	Since      time.Duration // when it was added
	Brief      bool          // some parts of the record are missing
}

// A place is a queue, the number of a block in it, and the offset in that block.
type place uint64

const (
	deadQueue = iota
	finishedQueue
	briefQueue
	burialQueues

	burialHead  = 25
	burialBlock = 16 << 10 // bytes; an entry that is larger has a block of its own
	offsetBits  = 14
	numberBits  = 48
	// placeBytes is about how many bytes of the map an entry uses.
	placeBytes = 40
)

func placeOf(queue int, number uint64, offset int) place {
	return place(queue)<<(numberBits+offsetBits) | place(number)<<offsetBits | place(offset)
}

func (p place) queue() int     { return int(p >> (numberBits + offsetBits)) }
func (p place) number() uint64 { return uint64(p) >> offsetBits & (1<<numberBits - 1) }
func (p place) offset() int    { return int(p & (1<<offsetBits - 1)) }

// A burialQueue has the entries of one kind, the oldest first.
type burialQueue struct {
	blocks []burials // the last one is being filled
	first  uint64    // number of blocks[0]
	at     int       // offset in blocks[0]: what stands before has given way
	size   int64     // bytes of all blocks, and of places in the map
	most   int64
}

type burials struct {
	mem  []byte // nil: none of its entries is left
	live int    // entries that are left
}

// NewBurials returns Burials whose queues have up to that many bytes each, and a block more.
func NewBurials(most int64) *Burials {
	b := &Burials{places: make(map[uint64]place)}
	for i := range b.queues {
		b.queues[i].most = most
	}
	return b
}

// Add remembers the record of a task that is dead or finished, by the hash of its id.
func (b *Burials) Add(hash uint64, shard uint32, id, rec []byte, now time.Duration) {
	queue := deadQueue
	if record.IsFinished(record.State(rec)) {
		queue = finishedQueue
	}
	b.put(queue, hash, Burial{Shard: shard, ID: id, Record: rec, Since: now})
	b.shrink(queue)
}

func (b *Burials) put(queue int, hash uint64, e Burial) {
	b.Remove(hash)
	number, offset := b.queues[queue].append(hash, &e)
	b.places[hash] = placeOf(queue, number, offset)
}

// Remove forgets the record of a task.
func (b *Burials) Remove(hash uint64) {
	if p, ok := b.places[hash]; ok {
		delete(b.places, hash)
		b.queues[p.queue()].remove(p.number())
	}
}

// Find returns the record of a task.
func (b *Burials) Find(hash uint64) (Burial, bool) {
	p, ok := b.places[hash]
	if !ok {
		return Burial{}, false
	}
	_, e, _ := b.queues[p.queue()].entry(p)
	return e, true
}

// Len returns how many records there are.
func (b *Burials) Len() int { return len(b.places) }

// Bytes returns about how much memory they use.
func (b *Burials) Bytes() (bytes int64) {
	for i := range b.queues {
		bytes += b.queues[i].size
	}
	return bytes
}

// A BurialCursor is how far a call of Since has come. The zero value is the beginning.
type BurialCursor struct{ next place }

// Since visits burials of a shard that were added at a time or later and that memory still has. It
// looks at up to limit entries and reports whether there are more. Burials may be added and removed
// between two calls: those that are there all the time are visited.
func (b *Burials) Since(shard uint32, since time.Duration, c *BurialCursor, limit int, visit func(hash uint64, e Burial)) (more bool) {
	for queue := c.next.queue(); queue < burialQueues; queue++ {
		q := &b.queues[queue]
		p := max(c.next, placeOf(queue, q.first, q.at))
		for i := p.number() - q.first; i < uint64(len(q.blocks)); i++ {
			number := q.first + i
			p = max(p, placeOf(queue, number, 0))
			for p.offset() < len(q.blocks[i].mem) {
				if limit--; limit < 0 {
					c.next = p
					return true
				}
				hash, e, size := q.entry(p)
				if b.places[hash] == p && e.Shard == shard && e.Since >= since {
					visit(hash, e)
				}
				if p.offset()+size >= len(q.blocks[i].mem) {
					break
				}
				p += place(size)
			}
		}
		c.next = placeOf(queue+1, 0, 0)
	}
	return false
}

// shrink has the oldest entries of a queue give way until it has no more bytes than it may have.
func (b *Burials) shrink(queue int) {
	q := &b.queues[queue]
	for q.size > q.most && len(q.blocks) > 1 {
		if block := &q.blocks[0]; q.at >= len(block.mem) {
			q.drop()
			continue
		}
		p := placeOf(queue, q.first, q.at)
		hash, e, size := q.entry(p)
		q.at += size
		if b.places[hash] != p {
			continue
		}
		if queue == finishedQueue {
			b.put(briefQueue, hash, brief(e))
			b.shrink(briefQueue)
		} else {
			b.Remove(hash)
		}
	}
}

// brief returns an entry without the parts that a finished task can do without.
func brief(e Burial) Burial {
	f, err := record.Decode(e.Record)
	if err != nil || len(f.Payload)+len(f.Headers)+len(f.Attempts)+len(f.Target) == 0 {
		return e
	}
	f.Payload, f.Headers, f.Attempts, f.Target, f.LastError = nil, nil, nil, nil, nil
	e.Record, e.Brief = f.Append(nil), true
	return e
}

// briefBit marks the size of a record that is brief.
const briefBit = 1 << 31

// append writes an entry behind the last one.
func (q *burialQueue) append(hash uint64, e *Burial) (number uint64, offset int) {
	n := burialHead + len(e.ID) + len(e.Record)
	if k := len(q.blocks); k == 0 || cap(q.blocks[k-1].mem)-len(q.blocks[k-1].mem) < n {
		if k > 0 && q.blocks[k-1].live == 0 {
			q.empty(&q.blocks[k-1])
		}
		mem := make([]byte, 0, max(n, burialBlock))
		q.size += int64(cap(mem))
		q.blocks = append(q.blocks, burials{mem: mem})
	}
	size := uint32(len(e.Record))
	if e.Brief {
		size |= briefBit
	}
	block := &q.blocks[len(q.blocks)-1]
	offset = len(block.mem)
	mem := binary.LittleEndian.AppendUint64(block.mem, hash)
	mem = binary.LittleEndian.AppendUint32(mem, e.Shard)
	mem = binary.LittleEndian.AppendUint64(mem, uint64(e.Since))
	mem = binary.LittleEndian.AppendUint32(mem, size)
	mem = append(mem, byte(len(e.ID)))
	block.mem = append(append(mem, e.ID...), e.Record...)
	block.live++
	q.size += placeBytes
	return q.first + uint64(len(q.blocks)-1), offset
}

// entry returns the entry at a place, and how many bytes it has.
func (q *burialQueue) entry(p place) (hash uint64, e Burial, size int) {
	mem := q.blocks[p.number()-q.first].mem[p.offset():]
	n := binary.LittleEndian.Uint32(mem[20:])
	e.Brief, n = n&briefBit != 0, n&^briefBit
	end := burialHead + int(mem[24])
	size = end + int(n)
	e.Shard = binary.LittleEndian.Uint32(mem[8:])
	e.Since = time.Duration(binary.LittleEndian.Uint64(mem[12:]))
	e.ID, e.Record = mem[burialHead:end:end], mem[end:size:size]
	return binary.LittleEndian.Uint64(mem), e, size
}

// remove gives up one entry of a block.
func (q *burialQueue) remove(number uint64) {
	q.size -= placeBytes
	i := int(number - q.first)
	block := &q.blocks[i]
	if block.live--; block.live == 0 && i < len(q.blocks)-1 {
		q.empty(block)
		for len(q.blocks) > 1 && q.blocks[0].mem == nil {
			q.drop()
		}
	}
}

func (q *burialQueue) empty(block *burials) {
	q.size -= int64(cap(block.mem))
	block.mem = nil
}

// drop gives up the first block.
func (q *burialQueue) drop() {
	q.empty(&q.blocks[0])
	q.blocks[0] = burials{}
	q.blocks, q.first, q.at = q.blocks[1:], q.first+1, 0
}
