package recovery

import (
	"context"
	"errors"
)

// Errors of ledgers and of the committer. They come wrapped with details; test
// for them with errors.Is.
var (
	// ErrHeld is returned by Adopt when a live process owns the ledger. The message names
	// the process, as far as the ledger knows it.
	ErrHeld = errors.New("the ledger is held by another process")
	// ErrLost is returned by Apply when a shard has passed to another owner:
	// nothing of the batch was applied, and nothing of a later one will be.
	ErrLost = errors.New("the shard has passed to another owner")
	// ErrForgotten ends a process that was cut off for so long that the other nodes have
	// adopted all its shards and removed its name. After a restart it is like a new node.
	ErrForgotten = errors.New("the other nodes have forgotten this one while it was cut off")
	// ErrUnanswered is returned by Transfer when the shard may have changed hands, now or later,
	// when a delayed command arrives. Only another Transfer tells.
	ErrUnanswered = errors.New("the ledger has not answered whether the shard has changed hands")
	// ErrOwnerLost is returned by a Locator and a Directory while the ledger has lost which node
	// owns a shard, or which nodes there are. The owners that live write it again with their next
	// heartbeat; what a dead one owned is adopted.
	ErrOwnerLost = errors.New("the ledger has lost which node owns the task")
	// ErrDropped is what the committer reports for a change whose caller gave up before it
	// was sent: the ledger has never seen it.
	ErrDropped = errors.New("dropped before sending")
	// ErrRetired is a kind of ErrLost: the shard was empty and its node is gone for good, so
	// this process has given it up.
	ErrRetired error = retiredError{}
	// ErrClosed is returned by every method of a ledger after Close.
	ErrClosed = errors.New("the ledger is closed")
	// ErrLayout is returned by Adopt when the ledger was written by a newer
	// version of Lapse in a way that this one cannot read.
	ErrLayout = errors.New("the ledger has a layout that this version cannot read")
	// ErrUnheard is returned by Bus.Send when no node received the message or ever will. It
	// has a method Unheard, for callers that do not import this package.
	ErrUnheard error = unheardError{}
	// ErrConflict is returned by PutSetting when the revision has changed.
	ErrConflict = errors.New("the setting has another revision")
	// ErrNoHistory is returned by ChangedSettings when the changes since the version are not
	// known one by one. The caller must then use EachSetting.
	ErrNoHistory = errors.New("the changes of settings since then are not known one by one")
	// ErrRewound is returned by ChangedSettings when the ledger has lost changes that led to
	// the version.
	ErrRewound = errors.New("the ledger has lost changes of settings")
	// ErrFull is returned by Condition when the ledger has no room to grow, and
	// by Apply when it has refused the creations of a batch for want of room.
	ErrFull = errors.New("the ledger is running out of room")
	// ErrBehind is returned by Condition while the ledger cannot keep up with the writes.
	ErrBehind = errors.New("the ledger writes faster than its store can sort")
	// ErrReserveUsed is returned by Condition, with ErrFull, when the room that is kept for the
	// ends of tasks is used up as well: the ledger is to be sent nothing that makes it grow.
	ErrReserveUsed = errors.New("the reserve for the ends of tasks is used up")
)

type retiredError struct{}

func (retiredError) Error() string { return "empty adopted shard retired" }
func (retiredError) Unwrap() error { return ErrLost }

type unheardError struct{}

func (unheardError) Error() string { return "no node received the message" }
func (unheardError) Unheard() bool { return true }

// A Place is one of the two places in which a ledger keeps records.
type Place uint8

// The places of a record.
const (
	Nowhere Place = iota // no record: before a creation, after a deletion
	Pending              // still to be delivered; replayed at the next start
	Dead                 // given up, kept to be looked at; not replayed
)

// A Spot says where a record stands.
type Spot struct {
	Place Place
	// At is the time, in Unix milliseconds, under which the record is registered:
	// of its next attempt among the pending, of its death among the dead.
	At int64
	// Label is the name under which a dead record is listed (its topic). It
	// is empty elsewhere.
	Label string
}

// A Change takes one record from where it stands to where it shall stand.
//
//	creation   Nowhere -> Pending        burial    Pending -> Dead
//	           Nowhere -> Dead           requeue   Dead    -> Pending
//	move       Pending -> Pending        removal   Dead    -> Nowhere
//	deletion   Pending -> Nowhere
//
// A creation among the dead is that of a record which comes from another ledger.
type Change struct {
	ID       []byte
	From, To Spot
	Data     []byte // the whole record at its new place; nil for Nowhere
	Mark     Mark   // of a pending record that comes from a spool, for a SpoolMarks
}

// Creation reports whether the record is new to the ledger.
func (c *Change) Creation() bool {
	return c.From.Place == Nowhere && c.To.Place != Nowhere
}

// A Ref names a pending record.
type Ref struct {
	ID   string
	Next int64 // Unix milliseconds
}

// An Entry is one record as the ledger holds it. Its slices belong to the
// ledger and are valid only during the call that hands it out.
type Entry struct {
	Shard int
	ID    []byte
	Spot  Spot
	Data  []byte // nil on a page of a scan that only nominates, see Scan
}

// Terms are what a ledger grants to the node that adopted it.
type Terms struct {
	// Shards is how many shards the node has taken; they are numbered from 0. It is at least
	// 1, unless other nodes hold all of the node's own shards, see Away. Each shard has its own
	// sequence of batches.
	Shards int
	// ShardOf names the shard in which a new record with this id belongs, or -1 if
	// the node does not hold it at the moment. An existing record stays in the shard
	// that has it. Without Away it is always in [0, Shards).
	ShardOf func(id []byte) int
	// ShardsOf names the shards that the node holds and in which Find looks first for a
	// record with this id: a new one may be created in each of them. OwnShardFor names the one
	// in which ShardOf puts it, whichever node holds that. Both are nil if the ledger is no Fleet.
	ShardsOf    func(id []byte) []int
	OwnShardFor func(id []byte) ShardID
	// Away lists the node's own shards that other nodes of a Fleet hold. The caller may ask
	// their holders to release them.
	Away []ShardID
	// AtOnce is how many batches, of as many shards, are worth sending at the same time; 0
	// means one for each shard. Where one server keeps all shards, more batches only wait
	// there, and each has gathered fewer changes.
	AtOnce int
	// Prompt says that Apply returns soon after the deadline of its context.
	Prompt bool
	// Server names the server that keeps a shard, where several do; nil: one keeps all of
	// them. It never waits.
	Server func(shard int) string
	// MaxChanges and MaxBytes bound a batch. A single change that is larger
	// than MaxBytes goes alone.
	MaxChanges, MaxBytes int
}

// A Ledger is the durable record of a node's tasks. All methods may be called
// concurrently, except that a shard's batches come one at a time.
type Ledger interface {
	// Adopt makes this process the owner. It comes before every other method.
	// Errors: ErrHeld, ErrLayout, or why the ledger cannot be reached.
	Adopt(ctx context.Context) (Terms, error)

	// Apply writes a batch: all of it or nothing, durable once it returns nil. A ledger
	// without room may refuse what would make it grow: with ErrFull, the batch was written
	// without any of its creations, and a copy of it that is still in flight will not create
	// them either. ErrLost and ErrClosed are final. After any other error the outcome is open,
	// and the caller repeats the same batch before it sends another one to the same shard.
	Apply(ctx context.Context, shard int, b *Batch) error

	// Get reads pending records of one shard and calls found for those that
	// exist, with their position in refs.
	Get(ctx context.Context, shard int, refs []Ref, found func(i int, e Entry)) error

	// Scan visits all pending records, page by page, each page in the order of their next
	// attempt as far as the ledger can. It is called once, right after Adopt, while batches are
	// already being applied. After an error it may be called again and starts anew. An entry
	// with Data shows the state at Adopt. No id comes with Data twice after one Adopt: a second
	// scan would bring back what was delivered and deleted since the first. An entry without
	// Data only nominates an id: the caller must read the record with Get, under its own lock,
	// since it may have changed or gone. An error of page ends the scan and is returned. page
	// may call Get. It may be called from several goroutines at once, each with pages of other
	// shards.
	Scan(ctx context.Context, page func([]Entry) error) error

	// GetDead reads dead records by id and calls found for those that exist.
	GetDead(ctx context.Context, ids []string, found func(i int, e Entry)) error

	// ListDead visits the dead records of a label, the longest dead first, beginning after the
	// record that died at after.Next with after.ID, until visit returns false. Without after.ID it
	// begins with the records that died at after.Next. An empty label means all labels, in their
	// order; after must then be zero, because it names no label.
	ListDead(ctx context.Context, label string, after Ref, visit func(e Entry) bool) error

	// Close releases the ledger, so that another process can adopt it at once. It is
	// idempotent. What Apply has confirmed stays.
	Close() error
}

// Settings is implemented by ledgers that also keep a few small named values,
// such as the settings of topics.
type Settings interface {
	// Setting reads one value. Revision 0 means that there is none.
	Setting(ctx context.Context, name string) (value []byte, revision int64, err error)
	// PutSetting writes a value (nil deletes it) if its revision is still
	// ifRevision, and returns the new revision. Writing what is already there
	// counts as success. A name's revisions only grow, also when it is deleted
	// and written again. Errors: ErrConflict.
	PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error)
	// EachSetting visits all values whose names begin with prefix, in no order. One may come
	// twice, the newer one last; one that changes meanwhile comes as it was or as it is.
	EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error
}

// SettingsRestorer is implemented by Settings whose storage may lose what it confirmed.
type SettingsRestorer interface {
	// RestoreSetting is PutSetting of a value that was confirmed under a revision and is lost.
	// The value gets that revision again, or a higher one. So what another process sets
	// afterwards is newer to every process that knows the value from before.
	RestoreSetting(ctx context.Context, name string, ifRevision int64, value []byte, revision int64) (int64, error)
}

// SharedSettings is implemented by ledgers whose settings other processes change as well.
type SharedSettings interface {
	Settings
	// SettingsVersion names the present state of all settings.
	SettingsVersion(ctx context.Context) (SettingsVersion, error)
	// ChangedSettings visits the settings whose names begin with prefix and that have changed
	// since a version, as they are now, and returns the version up to which that is complete.
	// A deleted setting has a nil value and a revision lower than any that it will have when
	// it is set again. If nothing has changed, the call costs one short round trip, so it can be
	// made several times a second. What was visited before an error is valid as well.
	//
	// Errors: ErrNoHistory, ErrRewound.
	ChangedSettings(ctx context.Context, since SettingsVersion, prefix string,
		visit func(name string, value []byte, revision int64)) (SettingsVersion, error)
}

// A SettingsVersion names a state of all settings. The zero value is that of a new ledger.
type SettingsVersion struct {
	Changes int64  // how many changes led to it
	Last    string // names the last one; empty if its writer gave it no name
}

// Finder is implemented by ledgers that can find a pending record by its id alone. With other
// ledgers, a call for an id that replay has not reached yet has to wait for replay. A record
// that was found may be finished and deleted at once, so Scan does not return it with Data
// afterwards.
type Finder interface {
	// Find reads a pending record and calls found if it exists.
	Find(ctx context.Context, id string, found func(e Entry)) error
}

// ManyFinder is implemented by Finders that find many records with few round trips.
type ManyFinder interface {
	// FindMany reads pending records and calls found for each that exists, with the index
	// of its id. After an error some have been found.
	FindMany(ctx context.Context, ids []string, found func(i int, e Entry)) error
}

// FindMany finds records together where the ledger can, and else one after the other.
func FindMany(ctx context.Context, f Finder, ids []string, found func(i int, e Entry)) error {
	if many, ok := f.(ManyFinder); ok && len(ids) > 1 {
		return many.FindMany(ctx, ids, found)
	}
	for i, id := range ids {
		if err := f.Find(ctx, id, func(e Entry) { found(i, e) }); err != nil {
			return err
		}
	}
	return nil
}

// DeadScanner is implemented by ledgers that can list the dead records of a shard without
// reading the records. A Fleet does.
type DeadScanner interface {
	// ScanDead visits the dead records of a shard, in no order and without their Data.
	// Those that come or go meanwhile may be left out, and one may come twice.
	ScanDead(ctx context.Context, shard int, visit func(e Entry)) error
}

// DeadChecker is implemented by ledgers whose storage may lose what it confirmed.
type DeadChecker interface {
	// HasDead reports for each id whether the shard has a dead record with it. It reads no
	// records. Errors: ErrLost, ErrClosed, or why the ledger cannot be read.
	HasDead(ctx context.Context, shard int, ids []string) ([]bool, error)
}

// Conditioner is implemented by ledgers that can tell in advance that they will refuse new
// records.
type Conditioner interface {
	// Condition is cheap and returns nil, ErrFull wrapped with figures, with ErrReserveUsed or
	// without, or another reason why new records would not be kept.
	Condition() error
}
