package ids

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// updatesAtOnce bounds the changes that one script gets: Lua puts two texts of each on a stack
// of 8000, and while a script runs, all other clients wait.
const updatesAtOnce = 1000

// A place is where one of several ids has its entry.
type place struct {
	bucket   uint8
	position int // among all ids of the call
}

// placesOf orders n ids by bucket.
func placesOf(n int, id func(i int) string) []place {
	places := make([]place, n)
	for i := range places {
		places[i] = place{layout.BucketOf(id(i)), i}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(int(a.bucket)-int(b.bucket), a.position-b.position)
	})
	return places
}

// eachBucket calls f with the places of each bucket.
func eachBucket(places []place, f func(bucket uint8, places []place)) {
	for len(places) > 0 {
		n := 1
		for n < len(places) && places[n].bucket == places[0].bucket {
			n++
		}
		f(places[0].bucket, places[:n])
		places = places[n:]
	}
}

// A Directory maps ids that callers have chosen to the shards of their records. It is shared by
// all nodes, and spread over the servers of a cluster by buckets of ids.
type Directory struct {
	Config
	lineage lineage
}

// A Config has what a directory needs. All fields must be set.
type Config struct {
	Client *conn.Client
	Keys   layout.Keys
	Log    *slog.Logger
	// FailoverAfter is for how long the directory is doubtful after it may have lost entries.
	FailoverAfter time.Duration
	Doubted       func()          // called when the directory may have lost entries
	Full          func(err error) // called when Redis has refused new ids
}

// New makes a directory.
func New(c Config) *Directory { return &Directory{Config: c} }

// Lookup returns where ids are registered, see recovery.Directory.
func (d *Directory) Lookup(ctx context.Context, ids []string) ([]recovery.DirectoryEntry, error) {
	type question struct {
		places []place
		reply  *redis.SliceCmd // the entries, and the mark of the bucket
	}
	var buckets []uint8 // of each question
	var reads []question
	var servers []*redis.Cmd
	err := d.Client.Pipe(ctx, func(p redis.Pipeliner) {
		eachBucket(placesOf(len(ids), func(i int) string { return ids[i] }), func(bucket uint8, places []place) {
			for part := range slices.Chunk(places, readAtOnce) {
				reply := d.readRecords(ctx, p, d.Keys.IDs(bucket), len(part), func(i int) *string { return &ids[part[i].position] })
				reads, buckets = append(reads, question{part, reply}), append(buckets, bucket)
			}
			if d.Client.IsCluster() || len(servers) == 0 {
				servers = append(servers, d.askLineage(ctx, p, bucket))
			}
		})
	})
	if err != nil {
		return nil, err
	}
	d.noteLineage(servers...)
	marks := make([]string, len(reads))
	for i, q := range reads {
		marks[i], _ = q.reply.Val()[len(q.places)].(string)
	}
	if err := d.checkMarks(ctx, buckets, marks); err != nil {
		return nil, err
	}
	found := make([]recovery.DirectoryEntry, len(ids))
	for _, q := range reads {
		for i, v := range q.reply.Val()[:len(q.places)] {
			if value, ok := v.(string); ok {
				at := q.places[i].position
				if found[at], err = layout.DecodeEntry(value); err != nil {
					return nil, fmt.Errorf("%s: %w", ids[at], err)
				}
			}
		}
	}
	return found, nil
}

// Update changes where ids are registered, see recovery.Directory. All changes for one server go
// together. If one of several servers does not answer, the outcome of its changes is open.
func (d *Directory) Update(ctx context.Context, changes []recovery.DirectoryUpdate) ([]recovery.DirectoryEntry, error) {
	places := placesOf(len(changes), func(i int) string { return changes[i].ID })
	if hasDuplicates(places, changes) {
		return nil, errors.New("an id comes twice in one call of File")
	}
	var calls []*updateCall
	for len(places) > 0 {
		call := d.newUpdateCall(places, changes)
		places = places[len(call.places):]
		calls = append(calls, call)
	}
	if err := d.runAll(ctx, calls); err != nil {
		return nil, err
	}
	now := make([]recovery.DirectoryEntry, len(changes))
	for i := range changes {
		now[i] = changes[i].New
	}
	var full error
	for _, c := range calls {
		v, err := conn.Judge(c.cmd)
		if err != nil {
			return nil, err
		}
		marks := make([]string, len(c.buckets))
		for i := range marks {
			marks[i] = v.Text(i)
		}
		if err := d.checkMarks(ctx, c.buckets, marks); err != nil {
			return nil, err
		}
		for i := len(marks); i+1 < len(v.Values); i += 2 {
			n := v.Number(i)
			if n < 1 || n > int64(len(c.places)) {
				return nil, fmt.Errorf("unexpected reply of a script: %v", v.Values)
			}
			if now[c.places[n-1].position], err = layout.DecodeEntry(v.Text(i + 1)); err != nil {
				return nil, err
			}
		}
		if v.Code != 0 {
			full = fmt.Errorf("%w: Redis is out of memory and has refused new ids", recovery.ErrFull)
		}
	}
	if full != nil {
		d.Full(full)
	}
	return now, full
}

// readAtOnce is how many small values are asked for in one command.
const readAtOnce = 1024

// readRecords reads n fields of a bucket, whose values are small, and its mark.
// Pointers to strings spare an allocation for each.
func (d *Directory) readRecords(ctx context.Context, p redis.Pipeliner, key string, n int, id func(i int) *string) *redis.SliceCmd {
	args := make([]any, 2, 3+n)
	args[0], args[1] = "hmget", key
	for i := range n {
		args = append(args, id(i))
	}
	cmd := redis.NewSliceCmd(ctx, append(args, layout.MarkField)...)
	_ = p.Process(ctx, cmd)
	return cmd
}

// hasDuplicates reports whether an id comes twice. Ids of one bucket are neighbours.
func hasDuplicates(places []place, changes []recovery.DirectoryUpdate) bool {
	found := false
	eachBucket(places, func(_ uint8, places []place) {
		if len(places) < 2 {
			return
		}
		ids := make([]string, len(places))
		for i, p := range places {
			ids[i] = changes[p.position].ID
		}
		slices.Sort(ids)
		found = found || len(slices.Compact(ids)) < len(places)
	})
	return found
}

// An updateCall is one run of file.lua.
type updateCall struct {
	places  []place
	buckets []uint8
	command []any
	cmd     *redis.Cmd
}

// newUpdateCall makes a call from the first of the places. In Cluster mode it touches one
// bucket: others may be on another server, and a call with two keys of which one may not exist
// fails while their slot moves.
func (d *Directory) newUpdateCall(places []place, changes []recovery.DirectoryUpdate) *updateCall {
	c := &updateCall{places: places[:min(updatesAtOnce, len(places))]}
	if d.Client.IsCluster() {
		n := 1
		for n < len(c.places) && places[n].bucket == places[0].bucket {
			n++
		}
		c.places = places[:n]
	}
	var keys []string
	var args []any
	// One buffer for all entries, and pointers to its parts: no text is boxed.
	text := make([]byte, 0, 2*layout.EntryLen*len(c.places))
	for _, p := range c.places {
		text = layout.AppendEntry(layout.AppendEntry(text, changes[p.position].Old), changes[p.position].New)
	}
	whole, parts := string(text), make([]string, 0, 2*len(c.places))
	next := func(f recovery.DirectoryEntry) *string {
		n := 0
		if f != (recovery.DirectoryEntry{}) {
			n = layout.EntryLen
		}
		parts = append(parts, whole[:n])
		whole = whole[n:]
		return &parts[len(parts)-1]
	}
	eachBucket(c.places, func(bucket uint8, places []place) {
		keys, c.buckets = append(keys, d.Keys.IDs(bucket)), append(c.buckets, bucket)
		n := len(places)
		from := len(args) + 1
		args = append(args, n)
		args = slices.Grow(args, 3*n)[:from+3*n]
		for i, p := range places {
			change := &changes[p.position]
			args[from+i], args[from+n+i], args[from+2*n+i] = &change.ID, next(change.Old), next(change.New)
		}
	})
	c.command = append(conn.FileScript.Head(nil, keys), args...)
	return c
}

// runAll runs calls in one round trip, and those whose script a server did not know in a second
// one.
func (d *Directory) runAll(ctx context.Context, calls []*updateCall) error {
	for len(calls) > 0 {
		p := d.Client.Pipeline()
		var servers []*redis.Cmd
		for i, c := range calls {
			c.cmd = redis.NewCmd(ctx, c.command...)
			_ = p.Process(ctx, c.cmd)
			if d.Client.IsCluster() || i == len(calls)-1 {
				servers = append(servers, d.askLineage(ctx, p, c.buckets[0]))
			}
		}
		_, _ = p.Exec(ctx) // each has its own error
		d.noteLineage(servers...)
		var unknown []*updateCall
		for _, c := range calls {
			err := c.cmd.Err()
			switch {
			case redis.HasErrorPrefix(err, "NOSCRIPT"):
				c.command[0], c.command[1] = "eval", conn.FileScript.Source
				unknown = append(unknown, c)
			case err != nil:
				return err
			}
		}
		calls = unknown
	}
	return nil
}

// Sizes of a step of ScanDirectory: it ends after so many entries, or so many buckets, and reads
// so many entries at a time.
const (
	scannedEntries = 1000
	scannedBuckets = 64
	scannedAtOnce  = 512
)

// ScanDirectory visits entries, see recovery.DirectoryScanner. A position is a bucket and Redis'
// cursor in it. After a failover or a restart of Redis a cursor has another meaning, and more
// entries may be left out; the next scan finds them.
func (d *Directory) ScanDirectory(ctx context.Context, position string, visit func(id string, f recovery.DirectoryEntry)) (next string, err error) {
	bucket, cursor := 0, uint64(0)
	if position != "" {
		if _, err := fmt.Sscanf(position, "%d:%d", &bucket, &cursor); err != nil || bucket < 0 {
			return "", fmt.Errorf("%q is no position in the directory", position)
		}
	}
	visited := 0
	for last := min(bucket+scannedBuckets, layout.Buckets); bucket < last && visited < scannedEntries; {
		var pairs []string
		if pairs, cursor, err = d.Client.HScan(ctx, d.Keys.IDs(uint8(bucket)), cursor, "", scannedAtOnce).Result(); err != nil {
			return "", err
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			if layout.IsReserved(pairs[i]) {
				continue
			}
			f, err := layout.DecodeEntry(pairs[i+1])
			if err != nil {
				d.Log.Error("directory entry unreadable; left as it is", "task", pairs[i], "error", err)
				continue
			}
			visit(pairs[i], f)
			visited++
		}
		if cursor == 0 {
			bucket++
		}
	}
	if bucket >= layout.Buckets {
		return "", nil
	}
	return fmt.Sprintf("%d:%d", bucket, cursor), nil
}
