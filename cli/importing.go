package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-json"
	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/internal/commandline"
	"github.com/lapsehq/lapse/cli/internal/movein"
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
	refused, _ := c.Refused()
	seconds := time.Since(r.began).Seconds()
	figures := []struct {
		n          int64
		name, text string
	}{
		{c.Imported.Load(), "imported", "imported %d"},
		{c.Repeated.Load(), "repeated", "there already %d"},
		{c.Moved.Load(), "moved", "moved %d"},
		{c.Cancelled.Load(), "cancelled", "cancelled %d"},
		{c.NoTTL.Load(), "without_ttl", "without TTL %d"},
		{c.Gone.Load(), "gone", "gone meanwhile %d"},
		{c.Taken.Load(), "taken", "taken by a worker meanwhile %d"},
		{c.Kept.Load(), "kept", "left to tasks that are not of this import %d"},
		{c.Deleted.Load(), "deleted", "deleted in the source %d"},
		{refused, "refused", "refused %d"},
	}
	if r.json {
		answer := map[string]any{"seconds": seconds, "interrupted": interrupted}
		for _, f := range figures {
			answer[f.name] = f.n
		}
		text, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(r.std.out, "%s\n", text)
		return err
	}
	var parts []string
	for i, f := range figures {
		if f.n > 0 || i == 0 {
			parts = append(parts, fmt.Sprintf(f.text, f.n))
		}
	}
	text := strings.Join(parts, ", ") + fmt.Sprintf(" (%.1f s, %.0f tasks/s)", seconds, float64(c.Accepted())/max(seconds, 1e-3))
	if interrupted {
		text += "; interrupted, repeat the command for the rest"
	}
	_, err := fmt.Fprintln(r.std.out, text)
	return err
}

// sourceRedis makes a client for a source. A fault is noted in bad.
func sourceRedis(url string, bad *faults) redis.UniversalClient {
	c, err := redisledger.ConnectReader(url, sourceConnections, sourceAnswer)
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
