package asynqtasks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/internal/movein"
	"github.com/lapsehq/lapse/client"
)

// pageSize is how many tasks are read and created at once.
const pageSize = 500

// ErrServers is returned while servers of asynq run.
var ErrServers = errors.New("servers of asynq are running")

// Options say what to import.
type Options struct {
	Redis  redis.UniversalClient
	Writer *movein.Writer
	Topic  string   // empty: the type of the task
	Queues []string // none: all
	// WhileRunning: the import goes on although servers of asynq run.
	WhileRunning bool
	// DeleteSource: a task is deleted in asynq once Lapse has accepted it.
	DeleteSource bool
	// Prepare is called for each topic before its first task.
	Prepare func(ctx context.Context, topic string) error
	Size    func(tasks int64)
}

// An entry is a task of asynq in one of its sets.
type entry struct {
	queue, set, id string
	due            time.Time
	message        []byte
}

func setKey(queue, set string) string { return "asynq:{" + queue + "}:" + set }
func taskKey(queue, id string) string { return "asynq:{" + queue + "}:t:" + id }

// Run imports the sets of all queues. Errors: ErrServers, those of movein.Writer, movein.ErrSource,
// movein.ErrNothing, that of the context.
func Run(ctx context.Context, o Options) error {
	if !o.WhileRunning {
		if err := o.checkServers(ctx); err != nil {
			return err
		}
	}
	o.Writer.Moves = true
	all, err := o.Redis.SMembers(ctx, "asynq:queues").Result()
	if err != nil {
		return sourceError(ctx, err)
	}
	slices.Sort(all)
	queues := o.Queues
	if len(queues) == 0 {
		queues = all
	}
	sets := []string{"scheduled", "retry"}
	size := int64(0)
	for _, queue := range queues {
		for _, set := range sets {
			n, err := o.Redis.ZCard(ctx, setKey(queue, set)).Result()
			if err != nil {
				return sourceError(ctx, err)
			}
			size += n
		}
	}
	if o.Size != nil {
		o.Size(size)
	}
	for _, queue := range queues {
		for _, set := range sets {
			if err := o.importSet(ctx, queue, set); err != nil {
				return fmt.Errorf("queue %s, %s tasks: %w", queue, set, err)
			}
		}
	}
	if o.Writer.Counts.Read.Load() > 0 {
		return nil
	}
	return movein.Nothing("no task is scheduled or retried in the queues that were looked at", "queues of asynq", all)
}

func (o *Options) checkServers(ctx context.Context) error {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	n, err := o.Redis.ZCount(ctx, "asynq:servers", now, "+inf").Result()
	if err != nil {
		return sourceError(ctx, err)
	}
	if n > 0 {
		return fmt.Errorf("%w (%d): what falls due there meanwhile is done there and here; stop them, or give --while-running", ErrServers, n)
	}
	return nil
}

func (o *Options) importSet(ctx context.Context, queue, set string) error {
	for cursor := uint64(0); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		page, next, err := o.Redis.ZScan(ctx, setKey(queue, set), cursor, "", pageSize).Result()
		if err != nil {
			return sourceError(ctx, err)
		}
		entries := make([]entry, 0, len(page)/2)
		for i := 0; i+1 < len(page); i += 2 {
			score, err := strconv.ParseFloat(page[i+1], 64)
			if err != nil {
				return fmt.Errorf("%w: the score of %q: %w", movein.ErrSource, page[i], err)
			}
			entries = append(entries, entry{queue: queue, set: set, id: page[i], due: time.UnixMilli(int64(score * 1000))})
		}
		for part := range slices.Chunk(entries, pageSize) { // a small set comes as one page
			if err := o.importPage(ctx, part); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// importPage creates the tasks of some entries. It goes on when ctx ends, as far as movein.Grace
// allows.
func (o *Options) importPage(ctx context.Context, entries []entry) error {
	work, end := movein.Grace(ctx)
	defer end()
	if err := o.readMessages(work, entries); err != nil {
		return err
	}
	requests, of := o.requests(entries)
	o.Writer.Counts.Read.Add(int64(len(entries)))
	for i := range requests {
		if err := o.Prepare(work, requests[i].Topic); err != nil {
			return err
		}
	}
	outcomes, err := o.Writer.Write(work, requests)
	if err != nil {
		return err
	}
	for k, outcome := range outcomes {
		e := &entries[of[k]]
		if outcome == movein.Conflict {
			resolved, err := o.Writer.Resolve(work, requests[k:k+1])
			if err != nil {
				return err
			}
			outcome = resolved[0]
		}
		if o.DeleteSource && outcome.Accepted() {
			if err := o.delete(work, e, requests[k].ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// readMessages reads the messages of entries; nil for what is gone.
func (o *Options) readMessages(ctx context.Context, entries []entry) error {
	p := o.Redis.Pipeline()
	texts := make([]*redis.StringCmd, len(entries))
	for i := range entries {
		texts[i] = p.HGet(ctx, taskKey(entries[i].queue, entries[i].id), "msg")
	}
	_, _ = p.Exec(ctx) // each command has its own error
	for i := range entries {
		text, err := texts[i].Bytes()
		if err != nil && !errors.Is(err, redis.Nil) {
			return sourceError(ctx, err)
		}
		entries[i].message = text
	}
	return nil
}

// requests makes the tasks of entries, and says which entry each is of.
func (o *Options) requests(entries []entry) (requests []client.Request, of []int) {
	seen := make(map[string]struct{}, len(entries))
	for i := range entries {
		e := &entries[i]
		if _, twice := seen[e.id]; twice { // as ZSCAN may
			continue
		}
		seen[e.id] = struct{}{}
		if e.message == nil {
			o.Writer.Counts.Gone.Add(1)
			continue
		}
		m, err := decode(e.message)
		topic := o.Topic
		if topic == "" {
			topic = m.kind
		}
		if err == nil && !movein.IsID(topic) {
			err = fmt.Errorf("its type %q cannot be the name of a topic: give --topic", m.kind)
		}
		if err != nil {
			o.Writer.Counts.Refuse(e.queue+":"+e.id, err)
			continue
		}
		requests, of = append(requests, requestOf(topic, e, &m)), append(of, i)
	}
	return requests, of
}

var headerName = regexp.MustCompile(`^[a-z0-9._-]{1,128}$`)

// requestOf makes the task of an entry. Its own headers give way to those that this package adds.
func requestOf(topic string, e *entry, m *message) client.Request {
	payload, encoding := movein.PayloadOf(m.payload)
	headers := make(map[string]string)
	for name, value := range m.headers {
		if name = strings.ToLower(name); headerName.MatchString(name) {
			headers[name] = value
		}
	}
	maps.Copy(headers, map[string]string{
		"asynq-type": m.kind, "asynq-queue": e.queue, "asynq-id": e.id,
		"asynq-retried": strconv.FormatInt(m.retried, 10), "asynq-max-retry": strconv.FormatInt(m.retry, 10),
	})
	if encoding != "" {
		headers[movein.EncodingHeader] = encoding
	}
	return client.Request{ID: movein.IDOf("asynq:" + e.queue + ":" + e.id), Topic: topic, Due: e.due, Payload: payload, Headers: headers}
}

// remove deletes a task of a set, unless it has left the set.
var remove = redis.NewScript(`
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
	return 0
end
local lock = redis.call('HGET', KEYS[2], 'unique_key')
if lock and lock ~= '' and redis.call('GET', lock) == ARGV[1] then
	redis.call('DEL', lock)
end
redis.call('DEL', KEYS[2])
return 1`)

// delete deletes an entry in asynq that has a task here. If it has left its set, asynq's workers
// have it, and the task is cancelled.
func (o *Options) delete(ctx context.Context, e *entry, task string) error {
	n, err := remove.Run(ctx, o.Redis, []string{setKey(e.queue, e.set), taskKey(e.queue, e.id)}, e.id).Int()
	if err != nil {
		return sourceError(ctx, err)
	}
	if n == 1 {
		o.Writer.Counts.Deleted.Add(1)
		return nil
	}
	o.Writer.Counts.Taken.Add(1)
	_, err = o.Writer.Cancel(ctx, task, nil)
	return err
}

func sourceError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", movein.ErrSource, err)
}
