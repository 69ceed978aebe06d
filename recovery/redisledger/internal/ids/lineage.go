package ids

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// A lineage detects that the directory may have lost entries. It knows three things:
//
//   - the replication id of each server. One that was restarted or promoted continues with the
//     writes that it has, under a new id. The id is read in one round trip with every read and
//     change of the directory, from the same server and after them.
//   - the mark of each bucket, a random text that is written once. It is gone or another one if the
//     bucket was removed, as by FLUSHALL, which leaves the replication id. It is read with the
//     bucket.
//   - the id of the data set, which is read with every heartbeat. It is gone after FLUSHALL, too,
//     and a node that finds a mark missing writes another one. So every node learns of the loss.
//
// So no answer of a server that may have lost entries is taken for that of a complete one.
type lineage struct {
	reading sync.Mutex // a turn to read the marks, and to write what follows from them

	mu      sync.Mutex // guards everything below
	marks   [layout.Buckets]string
	dataset string
	known   map[string]time.Time // since when; zero: from the beginning
	settled bool                 // all servers were read once: one that is not known is new
	doubts  uint64               // how often a loss was noticed
	since   time.Time            // when, for the last time
}

// markSource returns the mark of a bucket, and 1 if it was missing: then the script writes it.
const markSource = `
local mark = redis.call('HGET', KEYS[1], ARGV[1])
if mark then
  return {mark, 0}
end
redis.call('HDEL', KEYS[1], '') -- see claim: it must go through when Redis is full
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {ARGV[2], 1}
`

// askLineage adds to a pipeline a read of the replication id of a bucket's server, after the
// commands that are in it already.
func (d *Directory) askLineage(ctx context.Context, p redis.Pipeliner, bucket uint8) *redis.Cmd {
	return conn.AskHistory(ctx, p, d.Keys.IDs(bucket))
}

// noteLineage notes the replies to askLineage.
func (d *Directory) noteLineage(answers ...*redis.Cmd) {
	for _, answer := range answers {
		id, _ := answer.Text()
		d.NoteServer(id)
	}
}

// NoteServer notes the replication id of a server. If the server is new, the
// directory may have lost entries.
func (d *Directory) NoteServer(id string) {
	if id == "" || strings.Trim(id, "0") == "" {
		return
	}
	g := &d.lineage
	g.mu.Lock()
	_, known := g.known[id]
	isNew := g.settled && !known
	if g.known == nil {
		g.known = make(map[string]time.Time)
	}
	if isNew {
		g.known[id] = time.Now()
	} else if !known {
		g.known[id] = time.Time{}
	}
	g.mu.Unlock()
	if isNew {
		d.doubt("a server was restarted or has taken another one's place", "replication", id)
	}
}

// NoteDataset reads the id of the data set, which is done with every heartbeat. If it is another
// one, the directory may have lost entries. A loss that this node has noticed by a mark, and for
// which it writes another id meanwhile, is not noticed again.
func (d *Directory) NoteDataset(ctx context.Context, read func(context.Context) (string, error)) error {
	g := &d.lineage
	if id, err := read(ctx); err != nil || id == g.datasetNow() {
		return err
	}
	g.reading.Lock()
	defer g.reading.Unlock()
	id, err := read(ctx) // what was read before may be older than what is noted by now, or newer
	before := g.datasetNow()
	if err != nil || id == before {
		return err
	}
	if before != "" {
		if _, err := d.readMarksInTurn(ctx, true); err != nil {
			return err
		}
	}
	g.setDataset(id)
	return nil
}

func (g *lineage) datasetNow() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dataset
}

func (g *lineage) setDataset(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dataset = id
}

// Begin reads the marks of all buckets, and writes those that are missing. It is called before the
// directory is used.
func (d *Directory) Begin(ctx context.Context) error {
	d.lineage.reading.Lock()
	defer d.lineage.reading.Unlock()
	_, err := d.readMarksInTurn(ctx, false)
	return err
}

// checkMarks compares marks that were read with the entries of their buckets. If one is another
// than before, the directory has lost entries.
func (d *Directory) checkMarks(ctx context.Context, buckets []uint8, marks []string) error {
	g := &d.lineage
	same := true
	g.mu.Lock()
	for i, bucket := range buckets {
		same = same && marks[i] == g.marks[bucket]
	}
	g.mu.Unlock()
	if same {
		return nil
	}
	g.reading.Lock()
	defer g.reading.Unlock()
	missing, err := d.readMarksInTurn(ctx, false)
	if err != nil || !missing {
		return err
	}
	// The other nodes learn of it with their next heartbeat.
	id := layout.NewDataset()
	if err := d.Client.Set(ctx, d.Keys.Dataset(), id, 0).Err(); err != nil {
		return err
	}
	g.setDataset(id)
	return nil
}

// readMarksInTurn reads the marks of all buckets, and writes those that are missing. It reports
// whether there were some. If a mark has changed since it was last read, the directory may have
// lost entries, as it may if lost is set.
func (d *Directory) readMarksInTurn(ctx context.Context, lost bool) (missing bool, err error) {
	g := &d.lineage
	replies := make([]*redis.Cmd, layout.Buckets)
	if err := d.Client.Pipe(ctx, func(p redis.Pipeliner) {
		for bucket := range replies {
			replies[bucket] = p.Eval(ctx, markSource, []string{d.Keys.IDs(uint8(bucket))}, layout.MarkField, layout.NewIncarnation())
		}
	}); err != nil {
		return false, err
	}
	var marks [layout.Buckets]string
	for bucket, reply := range replies {
		mark, written, err := markOf(reply)
		if err != nil {
			return false, err
		}
		marks[bucket], missing = mark, missing || written
	}
	g.mu.Lock()
	lost = lost || g.marks != marks && g.marks[0] != ""
	g.marks = marks
	g.mu.Unlock()
	if lost {
		d.doubt("a part of the data was removed", "missing", missing)
	}
	return missing, nil
}

// markOf reads a reply to markSource.
func markOf(reply *redis.Cmd) (mark string, written bool, err error) {
	parts, err := reply.Slice()
	if err != nil {
		return "", false, err
	}
	if len(parts) == 2 {
		mark, _ = parts[0].(string)
		written = parts[1] == int64(1)
	}
	if mark == "" {
		return "", false, fmt.Errorf("unexpected reply of a script: %v", parts)
	}
	return mark, written, nil
}

// doubt notes that the directory may have lost entries, and why.
func (d *Directory) doubt(why string, details ...any) {
	g := &d.lineage
	g.mu.Lock()
	g.doubts++
	g.since = time.Now()
	g.mu.Unlock()
	d.Log.Warn("Redis may have lost ids that callers have chosen: calls about them go to all nodes for a while",
		append([]any{"why", why, "for", d.FailoverAfter}, details...)...)
	d.Doubted()
}

// IsNew notes the replication id of a server, and reports whether it was first seen within
// FailoverAfter. Before, it may have forgotten what not every live node has noticed yet.
func (d *Directory) IsNew(id string) bool {
	d.NoteServer(id)
	g := &d.lineage
	g.mu.Lock()
	defer g.mu.Unlock()
	since := g.known[id]
	return !since.IsZero() && clock.Since(since) < d.FailoverAfter
}

// Settle marks all servers as known.
func (d *Directory) Settle() {
	d.lineage.mu.Lock()
	defer d.lineage.mu.Unlock()
	d.lineage.settled = true
}

// Doubts returns how often the directory may have lost entries, and whether it may have within
// FailoverAfter. Every live node has noticed by then, and registers its ids anew.
func (d *Directory) Doubts() (count uint64, lately bool) {
	g := &d.lineage
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.doubts, g.doubts > 0 && clock.Since(g.since) < d.FailoverAfter
}
