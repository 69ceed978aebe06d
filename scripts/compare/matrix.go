package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/cli/bench"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/pubsub"
	"github.com/lapsehq/lapse/tasks/stream"
)

// An entrant takes part in a row.
type entrant struct {
	name  string
	lapse bool
	needs string // a program that must be installed, if any
	run   func(ctx context.Context, l bench.Load) (bench.Result, error)
}

// A row is one workload and its entrants.
type row struct {
	key      string
	title    string
	note     string // what must be known to read it
	lateness bool   // lateness is what counts, not tasks/s
	load     bench.Load
	entrants []entrant
	ratios   []ratio
}

// A ratio says what one entrant must reach beside another one.
type ratio struct {
	of, to string
	bar    float64 // 0: none was set
	most   bool    // the bar is the most that is allowed, not the least
}

// sizes of a run.
type sizes struct {
	tasks     int
	duration  time.Duration
	million   bool // peers take part in the burst of a million, too
	among     bool // 60,000 tasks in 60 s among five million
	binary    string
	redisAddr string // with AOF everysec, for Lapse and asynq
	// syncedAddr is a Redis that syncs its file before it answers. With synced it has the place of
	// the other one, and beanstalkd syncs as well.
	syncedAddr string
	synced     bool
}

// withSync is the same with systems that sync each write before they answer.
func (z sizes) withSync() sizes {
	z.redisAddr, z.synced = z.syncedAddr, true
	return z
}

// Names of entrants.
const (
	lapseRedis  = "Lapse embedded, Redis"
	lapseDisk   = "Lapse embedded, disk"
	lapseHTTP   = "Lapse over HTTP, disk"
	lapseHTTPR  = "Lapse over HTTP, Redis"
	lapseSmall  = "Lapse embedded, Redis, a tenth of the tasks"
	asynqName   = "asynq"
	beanName    = "beanstalkd"
	channelName = "Lapse embedded, Redis, by channel"
	streamName  = "Lapse embedded, Redis, by stream"
	expiryName  = "Redis expiry events"
	expiryFast  = "Redis expiry events, hz 500, effort 10"
	expirySync  = "Redis expiry events, synced"
	portName    = "Lapse by its Redis port, disk"
	timersName  = "time.AfterFunc"
	deletesName = "bare deletes of the Redis ledger"
)

// matrix is everything that is compared.
func matrix(z sizes) []row {
	load := bench.Load{Tasks: z.tasks, Callers: 64, Batch: 1000, Payload: 200, Duration: z.duration, Rest: 2 * time.Second, Patience: 30 * time.Second}
	steady, million, among, second := load, load, load, load
	y := z.withSync()
	steady.Rate = 10_000
	million.Tasks = 10 * z.tasks
	second.Rate, second.Duration = 10*z.tasks, time.Second
	among.Rate, among.Duration, among.Background = 1000, time.Minute, 5_000_000

	rows := []row{
		{
			key: "channel", title: fmt.Sprintf("%d tasks due at one instant reach a subscriber of expired keys", million.Tasks), load: million,
			note: "Lapse publishes them on `__keyevent@0__:expired` (`compat: keyevent`), for the same subscriber, and keeps them in the same Redis until they are published. " +
				"By stream, they are read from it. The topic's concurrency is 2048.",
			entrants: []entrant{z.inRedis(bench.Burst, pubsub.Kind), z.inRedis(bench.Burst, stream.Kind), z.expiry(bench.Burst, false), z.expiry(bench.Burst, true)},
			ratios:   []ratio{{of: channelName, to: expiryName, bar: 2}, {of: channelName, to: expiryFast, bar: 0.6}},
		},
		{
			key: "single", title: fmt.Sprintf("%d tasks scheduled one by one, by 64 callers", z.tasks), load: load,
			note:     "Accepted by Lapse on disk is synced; on Redis, and by asynq, it is in Redis, which syncs its file every second; by beanstalkd it is in a log that is synced every 50 ms.",
			entrants: []entrant{z.embeddedRedis(bench.Single), z.asynq(bench.Single), z.http(bench.Single), z.httpRedis(bench.Single), z.beanstalkd(bench.Single, false)},
			ratios:   []ratio{{of: lapseRedis, to: asynqName, bar: 2}, {of: lapseHTTP, to: beanName}, {of: lapseHTTPR, to: beanName}},
		},
		{
			key: "synced", title: fmt.Sprintf("%d tasks scheduled one by one, by 64 callers: each synced before its answer", z.tasks), load: load,
			note: "The same durability for all: Redis has `appendfsync always`, and beanstalkd `-f 0`. Lapse on disk is as it always is.",
			entrants: []entrant{y.embeddedDisk(bench.Single), y.embeddedRedis(bench.Single), y.asynq(bench.Single), y.http(bench.Single), y.httpRedis(bench.Single),
				y.beanstalkd(bench.Single, false)},
			ratios: []ratio{{of: lapseRedis, to: asynqName}, {of: lapseHTTP, to: beanName, bar: 2}, {of: lapseHTTPR, to: beanName}},
		},
		{
			key: "synced burst", title: fmt.Sprintf("%d tasks due at one instant, handled and forgotten: each end synced", z.tasks), load: load,
			note: "As the burst below, with the durability of the row above.",
			entrants: []entrant{y.embeddedDisk(bench.Burst), y.embeddedRedis(bench.Burst), y.asynq(bench.Burst), y.http(bench.Burst), y.httpRedis(bench.Burst),
				y.beanstalkd(bench.Burst, true)},
			ratios: []ratio{{of: lapseRedis, to: asynqName, bar: 15}, {of: lapseHTTP, to: beanName, bar: 1.3}, {of: lapseHTTPR, to: beanName, bar: 1.3}},
		},
		{
			key: "port", title: fmt.Sprintf("%d keys with a TTL set one by one, by 64 callers", z.tasks), load: load,
			note:     "The same client in all rows. Lapse answers when the key is synced to disk; Redis syncs its file every second, or before each answer.",
			entrants: []entrant{z.port(bench.Single), z.expiry(bench.Single, false), y.expirySynced(bench.Single), z.http(bench.Single)},
			ratios:   []ratio{{of: portName, to: expiryName}, {of: portName, to: expirySync}, {of: portName, to: lapseHTTP}},
		},
		{
			key: "port burst", title: fmt.Sprintf("%d keys that expire at one instant reach a subscriber", million.Tasks), load: million,
			note: "The same client in all rows. Lapse also syncs that each event was published; Redis forgets it. Redis with effort 10 has no limit for what waits for a " +
				"subscriber here: with its limit of 32 MB it cuts this subscriber off, and loses the rest.",
			entrants: []entrant{z.port(bench.Burst), z.expiry(bench.Burst, false), z.expiry(bench.Burst, true)},
			ratios:   []ratio{{of: portName, to: expiryName, bar: 3}, {of: portName, to: expiryFast, bar: 0.8}},
		},
		{
			key: "batch", title: fmt.Sprintf("%d tasks scheduled, 1000 a request, by 4 senders", z.tasks), load: load,
			note:     "asynq has no batches. beanstalkd gets 1000 commands at once.",
			entrants: []entrant{z.embeddedRedis(bench.Batch), z.http(bench.Batch), z.httpRedis(bench.Batch), z.beanstalkd(bench.Batch, false)},
			ratios:   []ratio{{of: lapseHTTP, to: beanName}, {of: lapseHTTPR, to: beanName}},
		},
		{
			key: "burst", title: fmt.Sprintf("%d tasks due at one instant, handled and forgotten", z.tasks), load: load,
			note: "Over HTTP, Lapse's 4 receivers pull and acknowledge up to 1000 tasks a request; beanstalkd's 4 reserve and delete up to 100 at once, and its " +
				"jobs are ready when the instant comes. asynq looks for due tasks once a second. Expiry events are not acknowledged.",
			entrants: []entrant{z.embeddedRedis(bench.Burst), z.deletes(), z.asynq(bench.Burst), z.http(bench.Burst), z.httpRedis(bench.Burst), z.beanstalkd(bench.Burst, true), z.expiry(bench.Burst, false), z.expiry(bench.Burst, true)},
			ratios: []ratio{{of: lapseRedis, to: asynqName, bar: 15}, {of: lapseRedis, to: deletesName, bar: 0.5}, {of: lapseHTTP, to: beanName, bar: 1.3}, {of: lapseHTTPR, to: beanName, bar: 1.3},
				{of: lapseRedis, to: expiryName}},
		},
		{
			key: "million", title: fmt.Sprintf("%d tasks due at one instant, handled and forgotten", million.Tasks), load: million,
			entrants: []entrant{z.embeddedRedis(bench.Burst), z.tenth(z.embeddedRedis(bench.Burst)), z.embeddedDisk(bench.Burst)},
			ratios:   []ratio{{of: lapseRedis, to: lapseSmall, bar: 1 / 1.2}},
		},
		{
			key: "second", title: fmt.Sprintf("%d tasks due within one second, scheduled in batches, pulled and acknowledged", second.Rate), load: second,
			note: "The time is that from the begin of the second until all are forgotten. Over HTTP, 4 receivers take and acknowledge up to 1000 tasks a request. " +
				"asynq takes no batches, and its handlers are in the process. beanstalkd's 4 receivers reserve and delete up to 100 at once. Both count whole seconds, rounded up here.",
			entrants: []entrant{z.http(bench.Steady), z.httpRedis(bench.Steady), z.asynq(bench.Steady), z.beanstalkd(bench.Steady, false)},
			ratios:   []ratio{{of: lapseHTTP, to: beanName, bar: 1.3}, {of: lapseHTTPR, to: beanName, bar: 1.3}, {of: lapseHTTP, to: asynqName}, {of: lapseHTTPR, to: asynqName}},
		},
		{
			key: "steady", title: fmt.Sprintf("10,000 tasks due in each second for %v: lateness", z.duration), lateness: true, load: steady,
			note: "All are scheduled before. time.AfterFunc records nothing and is the floor. asynq and beanstalkd count whole seconds, rounded up here.",
			entrants: []entrant{z.timers(bench.Steady), z.embeddedDisk(bench.Steady), z.embeddedRedis(bench.Steady), z.asynq(bench.Steady), z.beanstalkd(bench.Steady, false),
				z.expiry(bench.Steady, false), z.expiry(bench.Steady, true)},
			ratios: []ratio{{of: lapseDisk, to: timersName, bar: 3, most: true}, {of: lapseRedis, to: timersName, bar: 3, most: true},
				{of: lapseRedis, to: asynqName}, {of: lapseRedis, to: beanName}, {of: lapseRedis, to: expiryName}},
		},
	}
	if z.million {
		r := &rows[slices.IndexFunc(rows, func(r row) bool { return r.key == "million" })]
		r.entrants = append(r.entrants, z.asynq(bench.Burst), z.beanstalkd(bench.Burst, true), z.expiry(bench.Burst, false), z.expiry(bench.Burst, true))
	}
	if z.among {
		rows = append(rows, row{
			key: "among", title: "60,000 tasks due over 60 s, among 5 million pending: lateness", lateness: true, load: among,
			note:     "Redis looks for expired keys at random, so few among many are found late or not at all within the run.",
			entrants: []entrant{z.embeddedRedis(bench.Steady), z.inRedis(bench.Steady, pubsub.Kind), z.port(bench.Steady), z.expiry(bench.Steady, false)},
			ratios:   []ratio{{of: lapseRedis, to: expiryName}, {of: channelName, to: expiryName}, {of: portName, to: expiryName}},
		})
	}
	return rows
}

type workload func(context.Context, bench.System, bench.Load) (bench.Result, error)

// on runs a workload on a new system.
func on(name string, lapse bool, needs string, w workload, open func(ctx context.Context) (bench.System, error)) entrant {
	return entrant{name, lapse, needs, func(ctx context.Context, l bench.Load) (bench.Result, error) {
		s, err := open(ctx)
		if err != nil {
			return bench.Result{}, err
		}
		return w(ctx, s, l)
	}}
}

func (z sizes) embeddedRedis(w workload) entrant {
	return on(lapseRedis, true, "redis-server", w, bench.Redis("redis://"+z.redisAddr).Embedded)
}

func (z sizes) embeddedDisk(w workload) entrant {
	return on(lapseDisk, true, "", w, bench.Disk(".").Embedded)
}

func (z sizes) http(w workload) entrant {
	return on(lapseHTTP, true, "", w, func(ctx context.Context) (bench.System, error) {
		return openLapse(ctx, z.binary, nil)
	})
}

func (z sizes) httpRedis(w workload) entrant {
	return on(lapseHTTPR, true, "redis-server", w, func(ctx context.Context) (bench.System, error) {
		return openLapse(ctx, z.binary, z.redis())
	})
}

func (z sizes) asynq(w workload) entrant {
	return on(asynqName, false, "redis-server", w, func(context.Context) (bench.System, error) { return openAsynq(z.redisAddr), nil })
}

func (z sizes) beanstalkd(w workload, instant bool) entrant {
	var options []string
	if z.synced {
		options = []string{"-f", "0"}
	}
	return on(beanName, false, "beanstalkd", w, func(ctx context.Context) (bench.System, error) { return openBeanstalkd(ctx, instant, options...) })
}

// redis are the options of a Redis of a server's own.
func (z sizes) redis() []string {
	if z.synced {
		return []string{"--appendfsync", "always"}
	}
	return []string{"--appendfsync", "everysec"}
}

func (z sizes) expiry(w workload, fast bool) entrant {
	name, options := expiryName, []string(nil)
	if fast {
		// With its limit of 32 MB, it cuts off a subscriber that cannot keep up.
		name, options = expiryFast, []string{"--hz", "500", "--active-expire-effort", "10", "--client-output-buffer-limit", "pubsub 0 0 0"}
	}
	return on(name, false, "redis-server", w, func(ctx context.Context) (bench.System, error) { return openExpiry(ctx, options...) })
}

func (z sizes) expirySynced(w workload) entrant {
	return on(expirySync, false, "redis-server", w, func(ctx context.Context) (bench.System, error) { return openExpiry(ctx, z.redis()...) })
}

func (z sizes) port(w workload) entrant {
	return on(portName, true, "", w, func(ctx context.Context) (bench.System, error) { return openPort(ctx, z.binary) })
}

func (z sizes) inRedis(w workload, way tasks.Kind) entrant {
	name := channelName
	if way == stream.Kind {
		name = streamName
	}
	return on(name, true, "redis-server", w, func(ctx context.Context) (bench.System, error) { return openInRedis(ctx, way) })
}

func (z sizes) timers(w workload) entrant {
	return on(timersName, false, "", w, func(context.Context) (bench.System, error) { return &timers{}, nil })
}

func (z sizes) deletes() entrant {
	return entrant{deletesName, false, "redis-server", func(ctx context.Context, l bench.Load) (bench.Result, error) {
		return bareDeletes(ctx, "redis://"+z.redisAddr, l.Tasks)
	}}
}

// tenth is the same with fewer tasks.
func (z sizes) tenth(e entrant) entrant {
	return entrant{lapseSmall, e.lapse, e.needs, func(ctx context.Context, l bench.Load) (bench.Result, error) {
		l.Tasks /= 10
		return e.run(ctx, l)
	}}
}
