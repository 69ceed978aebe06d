package redisledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/lapsehq/lapse/recovery"
)

// All keys. A shard's keys share a slot of Redis Cluster by their hash tag, and
// so do the registry and what belongs to it, so that one script reaches them all.
//
//	lapse:{<node>/<shard>}:pending    set     ids of unfinished tasks, "!", fields of marks
//	lapse:{<node>/<shard>}:tasks      hash    id -> record; "!o" token, "!s" sequence,
//	                                          "!r" sequence of a batch that was cut, see
//	                                          apply.lua, "!a" how often its owner came back, see
//	                                          affirm.lua, "!spool:<id>" mark of a spool, see
//	                                          recovery.Mark
//	lapse:{<node>/<shard>}:dead       hash    id -> record of a dead task
//	lapse:{<node>/<shard>}:deadindex  zset    dead tasks in order, all of score 0
//	lapse:nodes                       hash    node -> entry
//	lapse:heartbeat:{lapse:nodes}:<node>      counter
//	lapse:status:{lapse:nodes}        hash    node -> its last status
//	lapse:numbers:{lapse:nodes}       hash    number -> node
//	lapse:ids:<n>                     hash    id -> filing, where the first byte of the id's
//	                                          CRC-32 (IEEE) is n
//	lapse:topics                      hash    name -> setting: revision, ":" and value, or the
//	                                          revision alone if it was deleted lately; "!v"
//	                                          number of changes, "!n" the last one's number and
//	                                          name, "!f" highest revision of deleted settings
//	                                          that are gone, see putsetting.lua
//	lapse:changes:{lapse:topics}      zset    the latest changes of settings in order, all of
//	                                          score 0: number of 16 digits, space, the change's
//	                                          name of 8 characters, space, the setting's name
//	lapse:dataset                     string  layout and random id of the data set
//
// And two channels for each node, which are independent of keys:
//
//	lapse:bus:<node>                  messages to a node
//	lapse:bus                         messages to all: the sender's incarnation, 24 bytes,
//	                                  and the message
//
// The databases of a server have separate keys, but share all channels. So those of database 3
// are lapse:bus/3:<node> and lapse:bus/3.
type keys struct {
	prefix string
	db     int
}

// DefaultPrefix is Options.Prefix unless set.
const DefaultPrefix = "lapse:"

func (k keys) nodes() string { return k.prefix + "nodes" }
func (k keys) heartbeat(node string) string {
	return k.prefix + "heartbeat:{" + k.nodes() + "}:" + node
}
func (k keys) status() string  { return k.prefix + "status:{" + k.nodes() + "}" }
func (k keys) numbers() string { return k.prefix + "numbers:{" + k.nodes() + "}" }
func (k keys) ids(bucket uint8) string {
	return k.prefix + "ids:" + strconv.Itoa(int(bucket))
}
func (k keys) topics() string  { return k.prefix + "topics" }
func (k keys) changes() string { return k.prefix + "changes:{" + k.topics() + "}" }
func (k keys) dataset() string { return k.prefix + "dataset" }

func (k keys) busOf(node string) string { return k.busOfAll() + ":" + node }
func (k keys) busOfAll() string {
	if k.db == 0 {
		return k.prefix + "bus"
	}
	return k.prefix + "bus/" + strconv.Itoa(k.db)
}

// shardKeys are the keys of one shard, in the order in which scripts take them.
type shardKeys [4]string

func (k keys) shard(node string, n int) shardKeys {
	tag := k.prefix + "{" + node + "/" + strconv.Itoa(n) + "}:"
	return shardKeys{tag + "tasks", tag + "pending", tag + "dead", tag + "deadindex"}
}

func (s *shardKeys) tasks() string     { return s[0] }
func (s *shardKeys) pending() string   { return s[1] }
func (s *shardKeys) dead() string      { return s[2] }
func (s *shardKeys) deadIndex() string { return s[3] }

// living are the keys that exist as long as the shard is owned: Redis Cluster
// answers TRYAGAIN for a missing one while its slot moves.
func (s *shardKeys) living() []string { return s[:2] }

// Fields and members that are not ids: "!" is outside the alphabet of ids.
const (
	ownerField    = "!o"
	sequenceField = "!s"
	refusedField  = "!r"
	affirmField   = "!a"
	anchorMember  = "!"
	markPrefix    = "!spool:"
)

func reserved(id string) bool { return id == "" || id[0] == '!' }

// validNode refuses names that would break a key's hash tag or a token.
func validNode(node string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("{}/#", r) }
	if node == "" || len(node) > 128 || node == retiredNode || strings.ContainsFunc(node, bad) {
		return fmt.Errorf("the node's name must be 1 to 128 printable characters, none of them a space or one of { } / #, and not %q", retiredNode)
	}
	return nil
}

func validPrefix(prefix string) error {
	if strings.ContainsAny(prefix, "{}") {
		return errors.New("the prefix of the keys must not contain braces, which Redis Cluster interprets")
	}
	return nil
}

// shardOf names the shard, among count, of a new record. It is part of the
// layout: another hash would not find the records again.
func shardOf(id []byte, count int) int {
	return int(crc32.ChecksumIEEE(id) % uint32(count))
}

// buckets is over how many hashes the filings of ids are spread. Redis needs half the memory for
// a hash of up to 512 filings, which is 131,072 filings altogether.
const buckets = 1 << 8

// bucketOf names the bucket of an id. It is part of the layout.
func bucketOf(id string) uint8 { return uint8(crc32.ChecksumIEEE([]byte(id)) >> 24) }

// A filing is the home and the nonce, 4 bytes each, big-endian. (As text it would need 16 bytes
// more.) An empty one, which is never stored, means that the id is not filed.
const filingLen = 8

func appendFiling(dst []byte, f recovery.Filing) []byte {
	if f == (recovery.Filing{}) {
		return dst
	}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, uint32(f.Home)), f.Nonce)
}

func decodeFiling(value string) (recovery.Filing, error) {
	switch len(value) {
	case 0:
		return recovery.Filing{}, nil
	case filingLen:
		n := binary.BigEndian.Uint64([]byte(value))
		return recovery.Filing{Home: recovery.Home(n >> 32), Nonce: uint32(n)}, nil
	}
	return recovery.Filing{}, fmt.Errorf("a filing of %d bytes cannot be read", len(value))
}

// A token says which process owns a shard: "<node>#<incarnation>#<epoch>". The epoch grows with
// every change of owner, so the higher one is the newer.
type token struct {
	node, incarnation string
	epoch             int64
}

// retiredNode replaces the owner in the token of a shard that was retired.
const retiredNode = "-"

func (t token) String() string {
	return t.node + "#" + t.incarnation + "#" + strconv.FormatInt(t.epoch, 10)
}

func (t token) retired() bool { return t.node == retiredNode }

// parseToken reads a token; "" is that of a shard that has none, with epoch 0.
func parseToken(s string) (token, error) {
	if s == "" {
		return token{}, nil
	}
	parts := strings.Split(s, "#")
	if len(parts) == 3 {
		if epoch, err := strconv.ParseInt(parts[2], 10, 64); err == nil {
			return token{parts[0], parts[1], epoch}, nil
		}
	}
	return token{}, fmt.Errorf("the owner token %q cannot be read", s)
}

// A pending record is stored as the time of its next attempt, 8 bytes big-endian,
// and its data. A dead one has the time of its death, the length of its label as
// 2 bytes, and its label in between. The data set's layout number (checks.go)
// changes when these do.
const timeLen = 8

func appendPending(dst []byte, at int64, data []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, uint64(at)), data...)
}

func decodePending(value string) (at int64, data string, err error) {
	if len(value) < timeLen {
		return 0, "", fmt.Errorf("a pending record of %d bytes cannot be read", len(value))
	}
	return int64(binary.BigEndian.Uint64([]byte(value[:timeLen]))), value[timeLen:], nil
}

func appendDead(dst []byte, at int64, label string, data []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(at))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(label)))
	return append(append(dst, label...), data...)
}

func decodeDead(value string) (at int64, label, data string, err error) {
	if len(value) >= timeLen+2 {
		at = int64(binary.BigEndian.Uint64([]byte(value[:timeLen])))
		n := int(binary.BigEndian.Uint16([]byte(value[timeLen : timeLen+2])))
		if rest := value[timeLen+2:]; len(rest) >= n {
			return at, rest[:n], rest[n:], nil
		}
	}
	return 0, "", "", fmt.Errorf("a dead record of %d bytes cannot be read", len(value))
}

// A member of a dead index is label, a zero byte, the time of death as 16 hexadecimal digits
// with its sign bit inverted, and the id. All have the same score, so Redis orders them by their
// bytes: by label, time and id.
func appendDeadRef[ID ~string | ~[]byte](dst []byte, label string, at int64, id ID) []byte {
	dst = append(append(dst, label...), 0)
	dst = append(dst, fmt.Sprintf("%016x", uint64(at)^1<<63)...)
	return append(dst, id...)
}

func decodeDeadRef(member string) (label string, at int64, id string, err error) {
	label, rest, ok := strings.Cut(member, "\x00")
	if ok && len(rest) >= 16 {
		if n, err := strconv.ParseUint(rest[:16], 16, 64); err == nil {
			return label, int64(n ^ 1<<63), rest[16:], nil
		}
	}
	return "", 0, "", fmt.Errorf("the member %q of an index of dead tasks cannot be read", member)
}
