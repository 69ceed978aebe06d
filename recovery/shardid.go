package recovery

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// A ShardID names one shard among those of all nodes that share a ledger, for as long as the
// shard holds anything. It does not change with the holder. It consists of the number of the
// node that made the shard and the shard's number there.
type ShardID uint32

// Bounds of the two parts of a ShardID. Nodes are numbered from 1, so that no ShardID is 0.
const (
	MaxNodeNumber = 1<<16 - 1
	MaxIDShard    = 1<<10 - 1

	idShardBits = 10
	shardIDBits = 26
)

// NewShardID makes a ShardID of its parts.
func NewShardID(node uint16, shard int) ShardID { return ShardID(node)<<idShardBits | ShardID(shard) }

// Node is the number of the node that made the shard.
func (h ShardID) Node() uint16 { return uint16(h >> idShardBits) }

// Shard is the number of the shard at the node that made it.
func (h ShardID) Shard() int { return int(h & MaxIDShard) }

// NewID makes an id that contains its shard id, so that any node can tell from the id alone where
// its record is: a UUIDv7 (RFC 9562, section 5.7) whose 74 random bits hold
//
//	rand_a, 12 bits   a check of the time and the shard id
//	rand_b, 26 bits   the shard id
//	        36 bits   random
//
// A record whose id contains a shard id is always kept there, whichever node made the id.
func (h ShardID) NewID() string {
	u := uuid.Must(uuid.NewV7())
	low := binary.BigEndian.Uint64(u[8:])
	const variant = 62
	low = low&(3<<variant|1<<(variant-shardIDBits)-1) | uint64(h)<<(variant-shardIDBits)
	binary.BigEndian.PutUint64(u[8:], low)
	check := shardIDCheck(&u, h)
	u[6] = u[6]&0xf0 | byte(check>>8)
	u[7] = byte(check)
	return u.String()
}

// ShardIDOf reads the shard id that an id contains. Of other UUIDs of version 7, one in four
// thousand seems to contain one too; it is a matter of luck whether any node has that number.
func ShardIDOf(id string) (ShardID, bool) {
	const length = 36
	if len(id) != length || id[14] != '7' {
		return 0, false
	}
	u, err := uuid.Parse(id)
	if err != nil || u.String() != id {
		return 0, false
	}
	h := ShardID(binary.BigEndian.Uint64(u[8:]) << 2 >> (64 - shardIDBits))
	check := uint16(u[6]&0x0f)<<8 | uint16(u[7])
	return h, h.Node() != 0 && u.Variant() == uuid.RFC4122 && check == shardIDCheck(&u, h)
}

// shardIDCheck is 12 bits of the FNV-1a hash of the id's time and its shard.
func shardIDCheck(u *uuid.UUID, h ShardID) uint16 {
	sum := uint32(2166136261)
	add := func(b byte) { sum = (sum ^ uint32(b)) * 16777619 }
	for _, b := range u[:6] {
		add(b)
	}
	for shift := 0; shift < 32; shift += 8 {
		add(byte(h >> shift))
	}
	return uint16(sum>>20^sum) & 0x0fff
}

// A Node is what a Fleet knows of one of its nodes.
type Node struct {
	Name   string
	Number uint16 // in the shard ids of its shards
	Self   bool   // this process

	Live        bool          // it sends heartbeats, or was not watched for long enough
	Released    bool          // its last process shut down cleanly
	Silent      time.Duration // for how long this process, while it looked, saw no heartbeat of it
	Looked      time.Duration // how long ago it has looked last
	Unseen      bool          // it cannot look for some seconds: the ledger does not answer
	Incarnation string        // names the process among all that had the node's name

	Process string // which process, for people
	Version string // of the program
	Address string // where it serves HTTP; empty if it does not
	Format  int    // of the newest records that it may have written

	Shards  int  // of its own: how many it has ever used
	Held    int  // of its own: how many it holds now
	Adopted int  // how many of other nodes' it holds
	Indexed bool // see Directory
	Spools  bool // its spool may have tasks that the ledger lacks, also if the node is dead
	// MissingSpools are spools of the node that may have tasks as well. A former process has left
	// them, and the node was started with another one, or with none.
	MissingSpools []string
	Status        []byte // its last status, if it is alive and not Gone; see Watcher.Status
	// Quiet: it sends no heartbeats, for not as long as a dead node, or it was quiet before a
	// gap in which this process could see none, and has given none since.
	Quiet bool
	// Gone: it was taken for dead, and has sent no heartbeat since. After a gap in which
	// this process could see none, Live is true again: no node adopts from it too soon.
	Gone bool
	// LastStatus is the same as Status, also of a node that is silent or has ended.
	LastStatus []byte
}
