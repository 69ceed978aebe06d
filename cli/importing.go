package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-json"
	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/internal/commandline"
	"github.com/lapsehq/lapse/cli/internal/movein"
	"github.com/lapsehq/lapse/cli/internal/movein/asynqtasks"
	"github.com/lapsehq/lapse/cli/internal/movein/beanstalkjobs"
	"github.com/lapsehq/lapse/cli/internal/movein/rediskeys"
	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger"
)

// importCommands are the commands that bring in what another system has scheduled.
func importCommands() []*commandline.Command {
	return []*commandline.Command{
		{Name: "redis", Target: &importRedis{}, Help: "Make tasks of the keys of a Redis that have a TTL, and follow it with --watch.", Detail: importRedisDetail},
		{Name: "asynq", Target: &importAsynq{}, Help: "Make tasks of the scheduled and retried tasks of asynq.", Detail: importAsynqDetail},
		{Name: "beanstalkd", Target: &importBeanstalkd{}, Help: "Move the delayed and ready jobs of a beanstalkd here.", Detail: importBeanstalkdDetail},
	}
}

// errInterrupted is returned by an import that was interrupted before it was done.
var errInterrupted = fmt.Errorf("interrupted: %w", context.Canceled)

const (
	sourceConnections = 16
	// sourceAnswer bounds a command of a source that is Redis.
	sourceAnswer = 5 * time.Second
)

// importing are the flags of all imports.
type importing struct {
	remote
	KeepFinished span `env:"-" placeholder:"1d" default:"1d" help:"Have the topic keep its finished tasks for so long at least (keep_finished, scope admin), so that an import that is repeated delivers nothing twice. 0s: leave the topic as it is."`
	Create       bool `env:"-" help:"Also a topic that does not exist yet, and has almost the name of one that does."`
}

// An importRun is an import under way.
type importRun struct {
	*session
	writer   *movein.Writer
	progress *movein.Progress
	keep     time.Duration
	json     bool
	began    time.Time

	mu   sync.Mutex      // guards kept; is held while the settings of a topic are looked at
	kept map[string]bool // topics that keep their finished tasks
}

// start connects to Lapse. Faults of the flags are noted in bad before.
func (c *importing) start(std streams, bad *faults, source string) (*importRun, error) {
	if c.KeepFinished.Duration < 0 || c.KeepFinished.Duration > 30*24*time.Hour {
		bad.add("keep-finished: must be from 0s to 30d")
	}
	asked := c.JSON
	c.JSON = false // what the API answers is not what is printed
	s, err := c.connect(std, bad)
	c.JSON = asked
	if err != nil {
		return nil, err
	}
	counts := &movein.Counts{}
	var terminal io.Writer
	if isTerminal(std.err) {
		terminal = std.err
	}
	return &importRun{session: s, keep: c.KeepFinished.Duration, kept: make(map[string]bool), json: asked, began: time.Now(),
		writer:   &movein.Writer{Client: s.Client, Source: source, Counts: counts},
		progress: movein.NewProgress(terminal, counts, 0)}, nil
}

// checkNamed returns an error if the topic that a user has named looks like a slip of one that
// exists.
func (c *importing) checkNamed(ctx context.Context, r *importRun, topic string) error {
	if topic == "" || c.Create {
		return nil
	}
	return r.checkNew(ctx, topic)
}

// tell writes a line for the operator.
func (r *importRun) tell(format string, args ...any) {
	r.progress.Tell(r.std.err, "lapse: "+plain(fmt.Sprintf(format, args...)))
}

// keepFinished has a topic keep its finished tasks, unless it does so already.
func (r *importRun) keepFinished(ctx context.Context, topic string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keep == 0 || r.kept[topic] {
		return nil
	}
	t, err := r.Topic(ctx, topic)
	var has time.Duration
	switch {
	case err == nil:
		has = time.Duration(t.KeepFinished)
	case !errors.Is(err, client.ErrNoTopic):
		return r.cannotKeep(topic, err)
	}
	if has < r.keep {
		if _, err := r.ChangeTopic(ctx, topic, map[string]any{"keep_finished": client.Duration(r.keep)}, client.AnyRevision); err != nil {
			return r.cannotKeep(topic, err)
		}
		r.tell("topic %s keeps its finished tasks for %s now (it was %s)", topic, client.Duration(r.keep), client.Duration(has))
	}
	r.kept[topic] = true
	return nil
}

func (r *importRun) cannotKeep(topic string, err error) error {
	if errors.Is(err, client.ErrUnauthorized) {
		return fmt.Errorf("topic %s: keep_finished: %w; have it set to %s with a token of the scope admin, and give --keep-finished 0s here",
			topic, err, client.Duration(r.keep))
	}
	return fmt.Errorf("topic %s: %w", topic, err)
}

// end prints the counts, and returns the error of the import.
func (r *importRun) end(ctx context.Context, err error) error {
	r.progress.Stop()
	r.Close()
	interrupted := ctx.Err() != nil && err != nil
	if interrupted {
		err = errInterrupted
	}
	if !r.json && (errors.Is(err, movein.ErrNothing) || errors.Is(err, movein.ErrSource) && r.writer.Counts.Read.Load() == 0) {
		return err
	}
	if printErr := r.summary(interrupted); printErr != nil && err == nil {
		err = printErr
	}
	n, reasons := r.writer.Counts.Refused()
	if err != nil || n == 0 {
		return err
	}
	for i, reason := range reasons {
		reasons[i] = errors.New(reason.Error()) // the command line is not at fault
	}
	return &failures{"no task was made of " + counted(n, "thing", "things") + " of the source:", reasons}
}

// summary prints the counts.
func (r *importRun) summary(interrupted bool) error {
	c := r.writer.Counts
	seconds := time.Since(r.began).Seconds()
	if r.json {
		answer := map[string]any{"seconds": seconds, "interrupted": interrupted}
		for _, f := range c.Figures() {
			answer[f.Name] = f.N
		}
		text, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(r.std.out, "%s\n", text)
		return err
	}
	text := fmt.Sprintf("%s (%.1f s, %.0f tasks/s)", c, seconds, float64(c.Accepted())/max(seconds, 1e-3))
	if interrupted {
		text += "; interrupted, repeat the command for the rest"
	}
	_, err := fmt.Fprintln(r.std.out, text)
	return err
}

// sourceRedis makes a client for a source. A fault is noted in bad.
func sourceRedis(url string, bad *faults) redis.UniversalClient {
	text, err := input("from", url)
	if err != nil {
		bad.include(err)
		return nil
	}
	c, err := redisledger.ConnectReader(strings.TrimSpace(string(text)), sourceConnections, sourceAnswer)
	if err != nil {
		bad.add("from: %w", err)
		return nil
	}
	return c
}

// checkTopic notes a topic that cannot be one.
func checkTopic(topic string, bad *faults) {
	if !movein.IsID(topic) {
		bad.add("topic: must be 1 to 128 of A-Za-z0-9._:@-, the first one a letter or digit")
	}
}

// importRedis is the command that makes tasks of keys with a TTL.
type importRedis struct {
	importing
	From       string        `env:"-" placeholder:"URL" default:"redis://127.0.0.1:6379" help:"Redis to read: a URL as lapse serve --redis takes it; @FILE and - read it from a file and from standard input, so that a password is in no list of processes. A replica will do."`
	Match      string        `env:"-" required:"" placeholder:"PATTERN" help:"Only keys that match, as of SCAN: order:*; * matches all."`
	Topic      string        `env:"-" required:"" placeholder:"NAME" help:"Topic of the tasks."`
	Watch      bool          `env:"-" help:"Follow the source until interrupted: new keys become tasks, EXPIRE moves them, DEL and PERSIST cancel them."`
	Rescan     time.Duration `env:"-" placeholder:"10m" default:"10m" help:"With --watch: scan the keys again so often, since notifications may be lost."`
	Configure  bool          `env:"-" help:"With --watch: switch the notifications on that it needs (CONFIG SET notify-keyspace-events)."`
	WithValues bool          `env:"-" help:"Put the values of strings into the payloads, up to 40 KiB each."`
	CancelGone bool          `env:"-" help:"After a scan, cancel the tasks of earlier imports whose keys are gone before their deadlines."`
	Rate       int           `env:"-" placeholder:"N" help:"Read at most so many keys a second. Default: as fast as goes without harming the source."`
	Source     string        `env:"-" placeholder:"NAME" default:"redis" help:"Name of the source, in the header imported of its tasks. Two sources for one topic need two names."`
}

// importRedisDetail says more than fits on a line.
const importRedisDetail = "It only reads, in pages, and rests as long as Redis was busy with one. A task has the key as its id" +
	" and is due when the key expires. It may be interrupted and repeated at any time: nothing is lost and nothing comes twice." +
	" See docs/moving.md."

// Run imports.
func (c *importRedis) Run(ctx context.Context, std streams, bad *faults) error {
	checkTopic(c.Topic, bad)
	if c.Rate < 0 || c.Rate > 10_000_000 {
		bad.add("rate: must be from 1 to 10000000")
	}
	if c.Rescan < time.Second || c.Rescan > 24*time.Hour {
		bad.add("rescan: must be from 1s to 24h")
	}
	if c.Configure && !c.Watch {
		bad.add("configure: goes with watch only")
	}
	if !isHeader(c.Source) {
		bad.add("source: must be 1 to 128 printable characters of ASCII")
	}
	from := sourceRedis(c.From, bad)
	if from != nil {
		defer from.Close()
	}
	r, err := c.start(std, bad, c.Source)
	if err != nil {
		return err
	}
	redis.SetLogger(redisLog{slog.New(slog.DiscardHandler)}) // the error of the run has it
	return r.end(ctx, func() error {
		if err := c.checkNamed(ctx, r, c.Topic); err != nil {
			return err
		}
		return rediskeys.Run(ctx, rediskeys.Options{
			Redis: from, Writer: r.writer, Topic: c.Topic, Match: c.Match, Values: c.WithValues, Rate: c.Rate,
			CancelGone: c.CancelGone, Watch: c.Watch, Rescan: c.Rescan, Configure: c.Configure,
			Prepare: r.keepFinished, Tell: r.tell, Size: r.progress.Size,
		})
	}())
}

// isHeader reports whether a text may be the value of a header that names a source.
func isHeader(text string) bool {
	if text == "" || len(text) > 128 {
		return false
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// importAsynq is the command that makes tasks of what asynq has scheduled.
type importAsynq struct {
	importing
	From         string   `env:"-" placeholder:"URL" default:"redis://127.0.0.1:6379" help:"Redis of asynq: a URL as lapse serve --redis takes it, also with a database; @FILE and - read it from a file and from standard input."`
	Topic        string   `env:"-" placeholder:"NAME" help:"Topic of all tasks. Default: the type of each."`
	Queue        []string `env:"-" placeholder:"NAME,..." help:"Only these queues. Default: all."`
	DeleteSource bool     `env:"-" help:"Delete each task in asynq once Lapse has accepted it."`
	WhileRunning bool     `env:"-" help:"Import although servers of asynq are running. What falls due meanwhile may be done by both."`
}

// importAsynqDetail says more than fits on a line.
const importAsynqDetail = "It reads the sets scheduled and retry of asynq's queues. Stop the servers of asynq before, and let them finish what is pending." +
	" It may be interrupted and repeated at any time. See docs/moving.md."

// Run imports.
func (c *importAsynq) Run(ctx context.Context, std streams, bad *faults) error {
	if c.Topic != "" {
		checkTopic(c.Topic, bad)
	}
	from := sourceRedis(c.From, bad)
	if from != nil {
		defer from.Close()
	}
	r, err := c.start(std, bad, "asynq")
	if err != nil {
		return err
	}
	redis.SetLogger(redisLog{slog.New(slog.DiscardHandler)}) // the error of the run has it
	if err := c.checkNamed(ctx, r, c.Topic); err != nil {
		return r.end(ctx, err)
	}
	return r.end(ctx, asynqtasks.Run(ctx, asynqtasks.Options{
		Redis: from, Writer: r.writer, Topic: c.Topic, Queues: c.Queue, WhileRunning: c.WhileRunning, DeleteSource: c.DeleteSource,
		Prepare: r.keepFinished, Size: r.progress.Size,
	}))
}

// importBeanstalkd is the command that moves the jobs of a beanstalkd.
type importBeanstalkd struct {
	importing
	From  string   `env:"-" placeholder:"HOST:PORT" default:"127.0.0.1:11300" help:"The beanstalkd."`
	Topic string   `env:"-" placeholder:"NAME" help:"Topic of all tasks. Default: the name of the tube."`
	Tube  []string `env:"-" placeholder:"NAME,..." help:"Only these tubes. Default: all."`
	Name  string   `env:"-" placeholder:"NAME" help:"Name of the beanstalkd in the ids of its tasks. Give the same when it is imported again at another address. Default: its address."`
}

// importBeanstalkdDetail says more than fits on a line.
const importBeanstalkdDetail = "A job is deleted in beanstalkd once Lapse has accepted its task. Jobs that are buried, or that a worker has reserved, stay." +
	" It may be interrupted and repeated at any time. See docs/moving.md."

// Run imports.
func (c *importBeanstalkd) Run(ctx context.Context, std streams, bad *faults) error {
	if c.Topic != "" {
		checkTopic(c.Topic, bad)
	}
	if _, _, err := net.SplitHostPort(c.From); err != nil {
		bad.add("from: must be HOST:PORT")
	}
	if c.Name == "" {
		c.Name = c.From
	}
	r, err := c.start(std, bad, "beanstalkd")
	if err != nil {
		return err
	}
	if err := c.checkNamed(ctx, r, c.Topic); err != nil {
		return r.end(ctx, err)
	}
	return r.end(ctx, beanstalkjobs.Run(ctx, beanstalkjobs.Options{
		Addr: c.From, Name: c.Name, Writer: r.writer, Topic: c.Topic, Tubes: c.Tube, Prepare: r.keepFinished, Size: r.progress.Size,
	}))
}
