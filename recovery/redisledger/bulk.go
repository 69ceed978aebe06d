package redisledger

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
)

// Reads of many records are cut into chunks. A chunk is one command (one for each hash), has a
// deadline of its own, and is sized to bring about chunkBytes, by the mean size of recent
// records. A chunk that does not come in time is requested again, half as large. A single
// record gets more and more time instead, up to maxPatience. So a read makes progress on every
// line that transfers one record within that time, and Redis never has to hold an answer of
// more than a few megabytes.
const (
	chunkBytes  = 1 << 20
	chunkMost   = 1024 // records
	chunkFirst  = 64   // records, while their size is not known
	maxPatience = 30 * time.Second
	// How many chunks are read at the same time. Look-ups do not wait for those of a replay.
	readersOfPending, readersOfFinds, readersOfDead, readersOfSettings = 4, 4, 2, 1
	// lateEvery is the time between two log lines about reads that do not come in time.
	lateEvery = 10 * time.Second
)

// bulk reads many records. It has connections of its own, so that a read in the middle of a
// long answer can be broken off at any time.
type bulk struct {
	client        *conn.Client
	pending, dead lane
	finds         lane // pending records of which only the id is known
	ids           lane // pages of scans, which have a connection of their own
	settings      lane
	waits         *recovery.WaitList
	log           *slog.Logger
}

func newBulk(a conn.Address, opts *Options, waits *recovery.WaitList) (*bulk, error) {
	client, err := conn.Connect(a, opts.TLS, readersOfPending+readersOfFinds+readersOfDead+readersOfSettings, maxPatience)
	if err != nil {
		return nil, err
	}
	b := &bulk{
		client:   client,
		waits:    waits,
		log:      opts.Log.With("node", opts.Node),
		pending:  newLane("reading pending records from Redis", readersOfPending),
		finds:    newLane("looking up records in Redis", readersOfFinds),
		dead:     newLane("reading dead records from Redis", readersOfDead),
		ids:      newLane("reading ids from Redis", 0),
		settings: newLane("reading settings from Redis", readersOfSettings),
	}
	b.ids.most, b.ids.limit = scanCount, scanCount
	return b, nil
}

// A lane is one kind of record, whose reads are sized together.
type lane struct {
	name  string
	most  int           // records of a chunk
	turns chan struct{} // holds a token for each chunk that is being read

	mu       sync.Mutex    // guards everything below
	mean     float64       // bytes of a record; 0: not known
	limit    int           // records of a chunk
	patience time.Duration // the deadline of a chunk
	logged   time.Time     // of the last log line
}

func newLane(name string, readers int) lane {
	return lane{name: name, most: chunkMost, turns: make(chan struct{}, readers), limit: chunkFirst, patience: conn.IOTimeout}
}

// next is how many records the next chunk should have, and its deadline.
func (c *lane) next() (records int, deadline time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	records = c.limit
	if c.mean > 0 {
		records = min(records, int(chunkBytes/c.mean))
	}
	return max(records, 1), c.patience
}

// came notes a chunk that was read.
func (c *lane) came(found int, bytes int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found > 0 { // large records count at once, so that no chunk becomes far too large
		mean := float64(bytes) / float64(found)
		c.mean = max(mean, (3*c.mean+mean)/4)
	}
	switch quick := took < c.patience/4; {
	case quick && c.patience > conn.IOTimeout:
		c.patience /= 2
	case quick:
		c.limit = min(2*c.limit, c.most)
	}
}

// late notes a chunk that did not come in time. It reports whether another attempt has a better
// chance.
func (c *lane) late(records int, deadline time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case records > 1:
		c.limit = min(c.limit, records/2)
	case deadline < maxPatience:
		c.patience = max(c.patience, min(2*deadline, maxPatience))
	default:
		return false
	}
	return true
}

// shouldLog reports whether it is time for another log line.
func (c *lane) shouldLog() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := c.logged.IsZero() || time.Since(c.logged) >= lateEvery
	if due {
		c.logged = time.Now()
	}
	return due
}

// readMany reads n fields of hashes and calls use for each, in their order. at returns the hash
// and the field; neighbours of one hash are read by one command. The caller has called
// Ledger.use. Errors: that of the first chunk that cannot be read, the cause of ctx, ErrClosed.
func (l *Ledger) readMany(ctx context.Context, c *lane, n int, at func(i int) (key string, field *string), use func(i int, value string, there bool)) error {
	for from := 0; from < n; {
		if err := l.closedError(ctx); err != nil {
			return err
		}
		select {
		case c.turns <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.life.Done():
			return l.closed()
		}
		records, deadline := c.next()
		records = min(records, n-from)
		began := time.Now()
		replies, err := l.readChunk(ctx, c, deadline, from, records, at)
		if err != nil {
			if cause := l.closedError(ctx); cause != nil {
				return cause
			}
			if !conn.TimedOut(err) {
				return err
			}
			again := c.late(records, deadline)
			l.bulk.logLate(c, records, deadline)
			if !again {
				return err
			}
			continue
		}
		found, bytes := 0, 0
		for _, reply := range replies {
			for _, v := range reply.Val() {
				value, there := v.(string)
				if there {
					found, bytes = found+1, bytes+len(value)
				}
				use(from, value, there)
				from++
			}
		}
		c.came(found, bytes, time.Since(began))
		l.waits.Clear(c.name)
	}
	return nil
}

// readChunk reads some of the fields. It returns at the deadline, when ctx ends and when the
// ledger is closed, and then releases its turn of the lane.
func (l *Ledger) readChunk(ctx context.Context, c *lane, deadline time.Duration, from, records int, at func(i int) (string, *string)) ([]*redis.SliceCmd, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	type answer struct {
		replies []*redis.SliceCmd
		err     error
	}
	answers := make(chan answer, 1)
	p := l.bulk.client.Pipeline()
	var a answer
	for i := from; i < from+records; {
		key, first := at(i)
		args := append(make([]any, 0, 2+records), "hmget", key, first)
		for i++; i < from+records; i++ {
			k, field := at(i)
			if k != key {
				break
			}
			args = append(args, field)
		}
		cmd := redis.NewSliceCmd(ctx, args...)
		_ = p.Process(ctx, cmd)
		a.replies = append(a.replies, cmd)
	}
	l.users.Add(1)
	go func() { // go-redis does not return when ctx is cancelled in the middle of an answer
		defer l.users.Done()
		defer func() { <-c.turns }()
		a.err = conn.Execute(ctx, p)
		answers <- a
	}()
	select {
	case a := <-answers:
		return a.replies, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// logLate enters in the log and in readiness that a chunk did not come in time.
func (b *bulk) logLate(c *lane, records int, deadline time.Duration) {
	text := "a record did not come"
	if records > 1 {
		text = "some records did not come"
	}
	b.waits.Set(c.name, text+" within "+deadline.String())
	if c.shouldLog() {
		b.log.Warn("Redis does not answer a read in time; it is repeated with fewer records, or more time",
			"read", c.name, "records", records, "within", deadline)
	}
}
