package layout

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// Keys makes all keys. A shard's keys share a slot of Redis Cluster by their hash tag, and
// so do the registry and what belongs to it, so that one script reaches them all.
//
//	lapse:{<node>/<shard>}:pending    set     ids of unfinished tasks, "!", fields of marks
//	lapse:{<node>/<shard>}:tasks      hash    id -> record; "!o" token, "!s" sequence,
//	                                          "!r" sequence of a batch that was cut, see
//	                                          apply.lua, "!a" how often its owner came back, see
//	                                          affirm.lua, or that it has ended in order, see
//	                                          end.lua, "!spool:<id>" mark of a spool, see
//	                                          recovery.Mark
//	lapse:{<node>/<shard>}:dead       hash    id -> record of a dead task
//	lapse:{<node>/<shard>}:deadindex  zset    dead tasks in order, all of score 0
//	lapse:nodes                       hash    node -> entry
//	lapse:heartbeat:{lapse:nodes}:<node>      counter
//	lapse:status:{lapse:nodes}        hash    node -> its last status
//	lapse:numbers:{lapse:nodes}       hash    number -> node
//	lapse:ids:<n>                     hash    id -> entry,  where the first byte of the id's
//	                                          CRC-32 (IEEE) is n; "!" a random mark, which is
//	                                          another one after the bucket was removed
//	lapse:topics                      hash    name -> setting: revision, ":" and value, or the
//	                                          revision alone if it was deleted lately; "!v"
//	                                          number of changes, "!n" the last one's number and
//	                                          name, "!f" highest revision of deleted settings
//	                                          that are gone, see putsetting.lua
//	lapse:changes:{lapse:topics}      zset    the latest changes of settings in order, all of
//	                                          score 0: number of 16 digits, space, the change's
//	                                          name of 8 characters, space, the setting's name
//	lapse:rows:<series>:<n>:<part>    hash    rows of recovery.Archive of one period, which began
//	                                          at n (Unix time in seconds): time (Unix time in
//	                                          milliseconds), space, name -> value. It expires
//	lapse:dataset                     string  layout and random id of the data set, which is
//	                                          another one after some of it was lost
//
// And two channels for each node, which are independent of keys:
//
//	lapse:bus:<node>                  messages to a node
//	lapse:bus                         messages to all: the sender's incarnation, 24 bytes,
//	                                  and the message
//
// The databases of a server have separate keys, but share all channels. So those of database 3
// are lapse:bus/3:<node> and lapse:bus/3.
type Keys struct {
	Prefix string
	DB     int
}

// Version is that of all keys and records, in front of the data set's id.
const Version = 1

// Nodes is the registry.
func (k Keys) Nodes() string { return k.Prefix + "nodes" }

// Heartbeat is the count of a node's heartbeats.
func (k Keys) Heartbeat(node string) string {
	return k.Prefix + "heartbeat:{" + k.Nodes() + "}:" + node
}

// Status has the last status of each node.
func (k Keys) Status() string { return k.Prefix + "status:{" + k.Nodes() + "}" }

// Numbers has the numbers of the nodes.
func (k Keys) Numbers() string { return k.Prefix + "numbers:{" + k.Nodes() + "}" }

// IDs is one bucket of the directory, see BucketOf.
func (k Keys) IDs(bucket uint8) string {
	return k.Prefix + "ids:" + strconv.Itoa(int(bucket))
}

// Topics has the settings.
func (k Keys) Topics() string { return k.Prefix + "topics" }

// Changes has the latest changes of settings.
func (k Keys) Changes() string { return k.Prefix + "changes:{" + k.Topics() + "}" }

// Rows has the rows of a part of an archive in one period.
func (k Keys) Rows(series string, period int64, part string) string {
	return k.Prefix + "rows:" + series + ":" + strconv.FormatInt(period, 10) + ":" + part
}

// NewDataset returns a layout and a random id.
func NewDataset() string { return strconv.Itoa(Version) + ":" + NewIncarnation() }

// Dataset is the layout and id of the data set.
func (k Keys) Dataset() string { return k.Prefix + "dataset" }

// BusOf is the channel to one node.
func (k Keys) BusOf(node string) string { return k.BusOfAll() + ":" + node }

// BusOfAll is the channel to all nodes.
func (k Keys) BusOfAll() string {
	if k.DB == 0 {
		return k.Prefix + "bus"
	}
	return k.Prefix + "bus/" + strconv.Itoa(k.DB)
}

// ShardKeys are the keys of one shard, in the order in which scripts take them.
type ShardKeys [4]string

// Shard returns the keys of shard n of a node.
func (k Keys) Shard(node string, n int) ShardKeys {
	tag := k.Prefix + "{" + node + "/" + strconv.Itoa(n) + "}:"
	return ShardKeys{tag + "tasks", tag + "pending", tag + "dead", tag + "deadindex"}
}

// Tasks has the pending records, the token and the sequence.
func (s *ShardKeys) Tasks() string { return s[0] }

// Pending is the set of the ids of pending records.
func (s *ShardKeys) Pending() string { return s[1] }

// Dead has the dead records.
func (s *ShardKeys) Dead() string { return s[2] }

// DeadIndex lists the dead records in order.
func (s *ShardKeys) DeadIndex() string { return s[3] }

// Living are the keys that exist as long as the shard is owned: Redis Cluster
// answers TRYAGAIN for a missing one while its slot moves.
func (s *ShardKeys) Living() []string { return s[:2] }

// Fields and members that are not ids: "!" is outside the alphabet of ids.
const (
	OwnerField    = "!o"
	SequenceField = "!s"
	RefusedField  = "!r"
	AffirmField   = "!a"
	AnchorMember  = "!"
	MarkPrefix    = "!spool:"
	MarkField     = "!" // of a bucket of the directory
)

// IsReserved reports whether a field or member is no id.
func IsReserved(id string) bool { return id == "" || id[0] == '!' }

// ValidNode refuses names that would break a key's hash tag or a token.
func ValidNode(node string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("{}/#", r) }
	if node == "" || len(node) > 128 || node == RetiredNode || strings.ContainsFunc(node, bad) {
		return fmt.Errorf("the node's name must be 1 to 128 printable characters, none of them a space or one of { } / #, and not %q", RetiredNode)
	}
	return nil
}

// ValidPrefix refuses prefixes that would break hash tags.
func ValidPrefix(prefix string) error {
	if strings.ContainsAny(prefix, "{}") {
		return errors.New("the prefix of the keys must not contain braces, which Redis Cluster interprets")
	}
	return nil
}

// ShardOf names the shard, among count, of a new record. It is part of the
// layout: another hash would not find the records again.
func ShardOf(id []byte, count int) int {
	return int(crc32.ChecksumIEEE(id) % uint32(count))
}

// Buckets is over how many hashes the directory entries of ids are spread. Redis needs half the
// memory for a hash of up to 512 entries, which is 131,072 entries altogether.
const Buckets = 1 << 8

// BucketOf names the bucket of an id. It is part of the layout.
func BucketOf(id string) uint8 { return uint8(crc32.ChecksumIEEE([]byte(id)) >> 24) }
