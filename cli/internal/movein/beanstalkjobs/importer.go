package beanstalkjobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/beanstalkd/go-beanstalk"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/cli/internal/movein"
	"github.com/lapsehq/lapse/client"
)

const (
	dialTimeout = 5 * time.Second
	// answerTimeout bounds each read and write.
	answerTimeout = 10 * time.Second
	// batchSize is how many jobs are reserved at once, gathering how long that takes at most: the
	// time to run of the first one goes by.
	batchSize = 500
	gathering = 200 * time.Millisecond
	// tubesAtOnce bounds the connections.
	tubesAtOnce = 8
	// mostRefused bounds the jobs of a tube that stay reserved because Lapse has refused them.
	mostRefused = 1000
)

// Options say what to import.
type Options struct {
	Addr   string // host:port
	Name   string // of the beanstalkd, in the ids of its tasks
	Writer *movein.Writer
	Topic  string   // empty: the name of the tube
	Tubes  []string // none: all
	// Prepare is called for each topic before its first task. Several calls may run at once.
	Prepare func(ctx context.Context, topic string) error
	Size    func(jobs int64)
}

// A tube is the import of one tube.
type tube struct {
	Options
	name, topic string
	conn        *beanstalk.Conn
	jobs        *beanstalk.TubeSet
	refused     map[uint64]bool
	counts      *movein.Counts
}

// A job is a job whose task is to be created.
type job struct {
	id    uint64
	body  []byte
	stats map[string]string
	due   time.Time // zero: now
}

// Run imports all tubes. Errors: those of movein.Writer, movein.ErrSource, movein.ErrNothing, that
// of the context.
func Run(ctx context.Context, o Options) error {
	conn, err := dial(ctx, o.Addr)
	if err != nil {
		return err
	}
	names, all, err := tubesOf(conn, &o)
	_ = conn.Close()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(tubesAtOnce)
	for _, name := range names {
		group.Go(func() error {
			if err := o.importTube(ctx, name); err != nil {
				return fmt.Errorf("tube %s: %w", name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil || o.Writer.Counts.Read.Load() > 0 {
		return err
	}
	return movein.Nothing("no job is ready or delayed in the tubes that were looked at", "tubes", all)
}

// tubesOf returns the tubes to import and all that there are, and tells the size of the former.
func tubesOf(conn *beanstalk.Conn, o *Options) (names, all []string, err error) {
	if all, err = conn.ListTubes(); err != nil {
		return nil, nil, sourceError(err)
	}
	slices.Sort(all)
	if names = o.Tubes; len(names) == 0 {
		names = all
	}
	size := int64(0)
	for _, name := range names {
		stats, err := beanstalk.NewTube(conn, name).Stats()
		if err != nil && !errors.Is(err, beanstalk.ErrNotFound) {
			return nil, nil, sourceError(err)
		}
		for _, kind := range []string{"current-jobs-ready", "current-jobs-delayed"} {
			n, _ := strconv.ParseInt(stats[kind], 10, 64)
			size += n
		}
	}
	if o.Size != nil {
		o.Size(size)
	}
	return names, all, nil
}

// importTube imports a tube over a connection of its own. Its end gives back what is reserved.
func (o Options) importTube(ctx context.Context, name string) error {
	t := &tube{Options: o, name: name, topic: o.Topic, refused: make(map[uint64]bool), counts: o.Writer.Counts}
	if t.topic == "" {
		t.topic = name
	}
	if !movein.IsID(t.topic) {
		return errors.New("its name cannot be that of a topic: give --tube for it, and --topic")
	}
	var err error
	if t.conn, err = dial(ctx, o.Addr); err != nil {
		return err
	}
	defer t.conn.Close()
	t.jobs = beanstalk.NewTubeSet(t.conn, name)
	// What becomes ready while the delayed jobs are imported is ready in the end.
	for _, part := range []func(context.Context) error{t.ready, t.delayed, t.ready} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ready imports jobs until none is ready.
func (t *tube) ready(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		batch, more, err := t.reserve()
		if err != nil {
			return err
		}
		if len(batch) > 0 {
			if err := t.move(ctx, batch); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		if len(t.refused) > mostRefused {
			return fmt.Errorf("%w: Lapse has refused %d jobs", errRefused, len(t.refused))
		}
		for id := range t.refused { // those of delayed jobs cannot be touched
			if err := t.conn.Touch(id); err != nil && !errors.Is(err, beanstalk.ErrNotFound) {
				return sourceError(err)
			}
		}
	}
}

// errRefused is returned where refused jobs stand in the way of others.
var errRefused = errors.New("jobs that Lapse refuses stand in the way")

// reserve reserves some jobs. more is false once no other job is ready.
func (t *tube) reserve() (batch []job, more bool, err error) {
	for began := time.Now(); len(batch) < batchSize && time.Since(began) < gathering; {
		id, body, err := t.jobs.Reserve(0)
		switch {
		case errors.Is(err, beanstalk.ErrTimeout):
			return batch, false, nil
		case errors.Is(err, beanstalk.ErrDeadline):
			return batch, len(batch) > 0, nil // a job is about to be taken back: be quick
		case err != nil:
			return nil, false, sourceError(err)
		case t.refused[id]:
			return batch, false, nil // all others have been seen
		}
		stats, err := t.conn.StatsJob(id)
		if errors.Is(err, beanstalk.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, false, sourceError(err)
		}
		batch = append(batch, job{id: id, body: body, stats: stats})
	}
	return batch, true, nil
}

// delayed imports the delayed jobs of the tube, the next one first.
func (t *tube) delayed(ctx context.Context) error {
	delayed := beanstalk.NewTube(t.conn, t.name)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		id, body, err := delayed.PeekDelayed()
		switch {
		case errors.Is(err, beanstalk.ErrNotFound):
			return nil
		case err != nil:
			return sourceError(err)
		case t.refused[id]:
			return fmt.Errorf("%w: job %d; the delayed jobs behind it were not imported", errRefused, id)
		}
		stats, err := t.conn.StatsJob(id)
		now := time.Now()
		if err != nil && !errors.Is(err, beanstalk.ErrNotFound) {
			return sourceError(err)
		}
		left, numberErr := strconv.ParseInt(stats["time-left"], 10, 32)
		if err != nil || stats["state"] != "delayed" || numberErr != nil {
			continue // it has become ready, or is gone
		}
		due := now.Add(time.Duration(left+1) * time.Second)
		if err := t.move(ctx, []job{{id: id, body: body, stats: stats, due: due}}); err != nil {
			return err
		}
	}
}

// move creates the tasks of jobs, and deletes the jobs. It goes on when ctx ends, as far as
// movein.Grace allows.
func (t *tube) move(ctx context.Context, batch []job) error {
	work, end := movein.Grace(ctx)
	defer end()
	if err := t.Prepare(work, t.topic); err != nil {
		return err
	}
	t.counts.Read.Add(int64(len(batch)))
	requests := make([]client.Request, len(batch))
	for i := range batch {
		requests[i] = t.request(&batch[i])
	}
	outcomes, err := t.Writer.Write(work, requests)
	if err != nil {
		return err
	}
	for i := range batch {
		o := outcomes[i]
		if o == movein.Conflict {
			resolved, err := t.Writer.Resolve(work, requests[i:i+1])
			if err != nil {
				return err
			}
			o = resolved[0]
		}
		if !o.Accepted() {
			t.refused[batch[i].id] = true
			continue
		}
		if err := t.delete(work, batch[i].id, requests[i].ID); err != nil {
			return err
		}
	}
	return nil
}

// delete deletes a job that has a task. If a worker has taken the job, the task is cancelled.
func (t *tube) delete(ctx context.Context, id uint64, task string) error {
	err := t.conn.Delete(id)
	switch {
	case err == nil:
		t.counts.Deleted.Add(1)
		return nil
	case !errors.Is(err, beanstalk.ErrNotFound):
		return sourceError(err)
	}
	t.counts.Taken.Add(1)
	_, err = t.Writer.Cancel(ctx, task, nil)
	return err
}

// request makes the task of a job. The id has a part that follows from tube and body: a beanstalkd
// without a binlog begins to count its jobs anew with each start.
func (t *tube) request(j *job) client.Request {
	digest := sha256.New()
	digest.Write([]byte(t.name + "\x00"))
	digest.Write(j.body)
	name := fmt.Sprintf("beanstalkd:%s:%d:%s", t.Name, j.id, hex.EncodeToString(digest.Sum(nil)[:6]))
	payload, encoding := movein.PayloadOf(j.body)
	headers := map[string]string{"beanstalkd-tube": t.name, "beanstalkd-job": strconv.FormatUint(j.id, 10)}
	for header, stat := range map[string]string{"beanstalkd-priority": "pri", "beanstalkd-ttr": "ttr"} {
		if value := j.stats[stat]; value != "" {
			headers[header] = value
		}
	}
	if encoding != "" {
		headers[movein.EncodingHeader] = encoding
	}
	return client.Request{ID: movein.IDOf(name), Topic: t.topic, Due: j.due, Payload: payload, Headers: headers}
}

// timed is a connection whose reads and writes have a bound.
type timed struct{ net.Conn }

func (c timed) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c timed) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func dial(ctx context.Context, addr string) (*beanstalk.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, sourceError(err)
	}
	return beanstalk.NewConn(timed{conn}), nil
}

func sourceError(err error) error { return fmt.Errorf("%w: %w", movein.ErrSource, err) }
