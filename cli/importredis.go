package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/internal/movein/rediskeys"
)

// importRedis is the command that makes tasks of keys with a TTL. The URL may hold a password, so
// it can come from the environment.
type importRedis struct {
	importing
	From       string        `placeholder:"URL" default:"redis://127.0.0.1:6379" help:"Redis to read: a URL as lapse serve --redis takes it, also with a password. A replica will do."`
	Match      string        `env:"-" required:"" placeholder:"PATTERN" help:"Only keys that match, as of SCAN: order:*."`
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
	" See docs/moving-from-redis-expiry.md."

// Run imports.
func (c *importRedis) Run(ctx context.Context, std streams, bad *faults) error {
	checkTopic(c.Topic, bad)
	if c.Match == "" {
		bad.add(`match: must not be empty; "*" matches all keys`)
	}
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
		if err := r.keepFinished(ctx, c.Topic); err != nil {
			return err
		}
		return rediskeys.Run(ctx, rediskeys.Options{
			Redis: from, Writer: r.writer, Topic: c.Topic, Match: c.Match, Values: c.WithValues, Rate: c.Rate,
			CancelGone: c.CancelGone, Watch: c.Watch, Rescan: c.Rescan, Configure: c.Configure,
			Tell: r.tell, Size: r.progress.Size,
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
