package bulk

import (
	"context"
	"crypto/tls"
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

// ScanCount is about how many ids a page has at most. While Redis reads it, all other clients
// wait for half a millisecond.
const ScanCount = 2048

// A Reader reads many records. It has connections of its own, so that a read in the middle of a
// long answer can be broken off at any time.
type Reader struct {
	client        *conn.Client
	Pending, Dead Lane
	Finds         Lane // pending records of which only the id is known
	IDs           Lane // pages of scans, which have a connection of their own
	Settings      Lane
	Config
}

// A Config has what a Reader needs beside their connections.
type Config struct {
	Life  context.Context // every read ends with it, and returns its cause
	Users *sync.WaitGroup // counts the answers that are still awaited
	Waits *recovery.WaitList
	Log   *slog.Logger
}

// New makes the connections for bulk reads, without connecting. config is used instead of what
// the address says about TLS; nil means the address's.
func New(a conn.Address, config *tls.Config, c Config) (*Reader, error) {
	client, err := conn.Connect(a, config, readersOfPending+readersOfFinds+readersOfDead+readersOfSettings, maxPatience)
	if err != nil {
		return nil, err
	}
	b := &Reader{
		client:   client,
		Config:   c,
		Pending:  newLane("reading pending records from Redis", readersOfPending),
		Finds:    newLane("looking up records in Redis", readersOfFinds),
		Dead:     newLane("reading dead records from Redis", readersOfDead),
		IDs:      newLane("reading ids from Redis", 0),
		Settings: newLane("reading settings from Redis", readersOfSettings),
	}
	b.IDs.most, b.IDs.limit = ScanCount, ScanCount
	return b, nil
}

// A Lane is one kind of record, whose reads are sized together.
type Lane struct {
	Name  string
	most  int           // records of a chunk
	turns chan struct{} // holds a token for each chunk that is being read

	mu       sync.Mutex    // guards everything below
	mean     float64       // bytes of a record; 0: not known
	limit    int           // records of a chunk
	patience time.Duration // the deadline of a chunk
	logged   time.Time     // of the last log line
}

func newLane(name string, readers int) Lane {
	return Lane{Name: name, most: chunkMost, turns: make(chan struct{}, readers), limit: chunkFirst, patience: conn.IOTimeout}
}

// Next is how many records the next chunk should have, and its deadline.
func (c *Lane) Next() (records int, deadline time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	records = c.limit
	if c.mean > 0 {
		records = min(records, int(chunkBytes/c.mean))
	}
	return max(records, 1), c.patience
}

// Came notes a chunk that was read.
func (c *Lane) Came(found int, bytes int, took time.Duration) {
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

// Late notes a chunk that did not come in time. It reports whether another attempt has a better
// chance.
func (c *Lane) Late(records int, deadline time.Duration) bool {
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

// LateShort is late for a connection that allows no longer time.
func (c *Lane) LateShort(records int) bool { return c.Late(records, maxPatience) }

// shouldLog reports whether it is time for another log line.
func (c *Lane) shouldLog() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := c.logged.IsZero() || time.Since(c.logged) >= lateEvery
	if due {
		c.logged = time.Now()
	}
	return due
}

// ReadMany reads n fields of hashes and calls use for each, in their order. at returns the hash
// and the field; neighbours of one hash are read by one command. Errors: that
// of the first chunk that cannot be read, and the cause of ctx or of the reader's life.
func (b *Reader) ReadMany(ctx context.Context, c *Lane, n int, at func(i int) (key string, field *string), use func(i int, value string, there bool)) error {
	for from := 0; from < n; {
		if err := b.closed(ctx); err != nil {
			return err
		}
		select {
		case c.turns <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-b.Life.Done():
			return context.Cause(b.Life)
		}
		records, deadline := c.Next()
		records = min(records, n-from)
		began := time.Now()
		replies, err := b.readChunk(ctx, c, deadline, from, records, at)
		if err != nil {
			if cause := b.closed(ctx); cause != nil {
				return cause
			}
			if !conn.TimedOut(err) {
				return err
			}
			again := c.Late(records, deadline)
			b.LogLate(c, records, deadline)
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
		c.Came(found, bytes, time.Since(began))
		b.Waits.Clear(c.Name)
	}
	return nil
}

// Close closes the connections, which breaks off reads.
func (b *Reader) Close() error { return b.client.Close() }

// closed is why a read must end, or nil.
func (b *Reader) closed(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Cause(b.Life)
}

// readChunk reads some of the fields. It returns at the deadline, when ctx ends and when the
// ledger is closed, and then releases its turn of the lane.
func (b *Reader) readChunk(ctx context.Context, c *Lane, deadline time.Duration, from, records int, at func(i int) (string, *string)) ([]*redis.SliceCmd, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	type answer struct {
		replies []*redis.SliceCmd
		err     error
	}
	answers := make(chan answer, 1)
	p := b.client.Pipeline()
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
	b.Users.Add(1)
	go func() { // go-redis does not return when ctx is cancelled in the middle of an answer
		defer b.Users.Done()
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

// LogLate enters in the log and in readiness that a chunk did not come in time.
func (b *Reader) LogLate(c *Lane, records int, deadline time.Duration) {
	text := "a record did not come"
	if records > 1 {
		text = "some records did not come"
	}
	b.Waits.Set(c.Name, text+" within "+deadline.String())
	if c.shouldLog() {
		b.Log.Warn("Redis does not answer a read in time; it is repeated with fewer records, or more time",
			"read", c.Name, "records", records, "within", deadline)
	}
}
