package redisledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/internal/checkup"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

const (
	// inspectWithin bounds an inspection.
	inspectWithin = 15 * time.Second
	// inspectPings is how often the latency is measured.
	inspectPings = 40
	// slowMedian and slowWorst are latencies from which on callers notice Redis.
	slowMedian, slowWorst = 5 * time.Millisecond, 100 * time.Millisecond
	// farClock is a distance of clocks that makes the lateness in logs of two machines differ.
	farClock = 100 * time.Millisecond
	// nearFull is the share of maxmemory from which on an operator should act.
	nearFull = 0.75
	// appendfsync and save are settings of Redis.
	appendfsync, save = "appendfsync", "save"
)

// Inspect finds out whether a Redis is fit for a ledger with these options, without being one: it
// adopts nothing. It writes and deletes keys of its own under the prefix, to learn which commands
// the user may call, and ends after 15 s at most. The error tells what is wrong with the options.
func Inspect(ctx context.Context, opts Options) ([]checkup.Finding, error) {
	opts, a, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	client, err := conn.Connect(a, opts.TLS, 4, conn.IOTimeout)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, inspectWithin)
	defer cancel()
	i := &inspection{client: client, opts: opts, keys: layout.Keys{Prefix: opts.Prefix, DB: a.DB}}
	i.run(ctx)
	return i.findings, nil
}

// An inspection collects what is found out about the servers of one address.
type inspection struct {
	client   *conn.Client
	opts     Options
	keys     layout.Keys
	findings []checkup.Finding
}

func (i *inspection) add(v checkup.Verdict, subject, found, do string) {
	i.findings = append(i.findings, checkup.Finding{Subject: "redis " + subject, Verdict: v, Found: found, Do: do})
}

func (i *inspection) run(ctx context.Context) {
	if err := i.client.Ping(ctx).Err(); err != nil {
		i.unreachable(ctx, err)
		return
	}
	i.add(checkup.OK, "connection", i.client.String()+" answers", "")
	if !i.servers(ctx) {
		return
	}
	i.latency(ctx)
	i.commands(ctx)
}

// unreachable tells a server that is away from one that refuses this caller.
func (i *inspection) unreachable(ctx context.Context, err error) {
	do := "check the URL, that Redis runs, and what is between it and this machine"
	switch text := err.Error(); {
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOAUTH"), strings.Contains(text, "NOPERM"):
		do = "check user and password in the URL, and the user's ACL (docs/operations.md, Redis)"
	case errors.Is(err, conn.ErrReplica):
		do = "name the master, or use redis+sentinel:// or redis+cluster://, which find it"
	case strings.Contains(text, "cluster support disabled"):
		do = "the server is no Redis Cluster: write redis:// in place of redis+cluster://"
	case strings.Contains(text, "DB index is out of range"):
		do = "name a database that the server has: the number behind the last / of the URL"
	case i.client.AnswersPing(ctx):
		do = "it answers PING alone: name the Redis itself and no proxy, or check TLS (rediss://)"
	}
	i.add(checkup.Fail, "connection", err.Error(), do)
}

// servers looks at INFO of every server that takes writes. It reports whether it could.
func (i *inspection) servers(ctx context.Context) bool {
	var mu sync.Mutex
	var all []conn.Info
	err := i.client.EachServer(ctx, func(ctx context.Context, c *redis.Client) error {
		in, err := conn.InfoOf(ctx, c, []string{"server", "memory", "persistence", "replication", "cluster"})
		if err != nil {
			return err
		}
		// Lapse needs no CONFIG: a user who may not call it learns less.
		for _, name := range []string{appendfsync, save} {
			if got, err := c.ConfigGet(ctx, name).Result(); err == nil {
				if value, has := got[name]; has {
					in["config "+name] = value
				}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, in)
		return nil
	})
	if err != nil || len(all) == 0 {
		i.add(checkup.Fail, "version", fmt.Sprintf("INFO fails: %v", err), "allow +info, or name the Redis itself and no proxy")
		return false
	}
	i.version(all)
	for _, in := range all {
		name := ""
		if len(all) > 1 {
			name = " of " + in["run_id"][:min(8, len(in["run_id"]))]
		}
		i.mode(in, name)
		i.eviction(in, name)
		i.memory(in, name)
		i.persistence(in, name)
		i.replicas(in, name)
	}
	return true
}

func (i *inspection) version(all []conn.Info) {
	oldest := slices.MinFunc(all, func(a, b conn.Info) int {
		return conn.CompareVersions(a["redis_version"], b["redis_version"])
	})["redis_version"]
	if conn.CompareVersions(oldest, minVersion) < 0 {
		i.add(checkup.Fail, "version", oldest, "upgrade to "+minVersion+" or later")
		return
	}
	i.add(checkup.OK, "version", oldest, "")
}

// mode compares the kind of the server with that of the URL.
func (i *inspection) mode(in conn.Info, name string) {
	if in["cluster_enabled"] == "1" && !i.client.IsCluster() {
		i.add(checkup.Fail, "cluster"+name, "the server is a node of Redis Cluster, the URL names a single Redis", "write redis+cluster:// in place of redis://")
	}
}

func (i *inspection) eviction(in conn.Info, name string) {
	policy := in["maxmemory_policy"]
	switch {
	case evicting(in) == "":
		i.add(checkup.OK, "eviction"+name, policy, "")
	case i.opts.ForceEviction:
		i.add(checkup.Warn, "eviction"+name, policy+": Redis deletes tasks when it is full", "set maxmemory-policy to noeviction")
	default:
		i.add(checkup.Fail, "eviction"+name, policy+": Redis would delete tasks when it is full", "set maxmemory-policy to noeviction")
	}
}

func (i *inspection) memory(in conn.Info, name string) {
	limit, used, machine := in.Number("maxmemory"), in.Number("used_memory"), in.Number("total_system_memory")
	found := fmt.Sprintf("%.0f MiB used", used/(1<<20))
	if limit > 0 {
		found = fmt.Sprintf("%.0f of %.0f MiB used", used/(1<<20), limit/(1<<20))
	}
	switch {
	case limit > 0 && used > fullAt*limit:
		i.add(checkup.Fail, "memory"+name, found, "Lapse refuses new tasks above 95 %: raise maxmemory, or delete what else is there")
	case limit > 0 && used > nearFull*limit:
		i.add(checkup.Warn, "memory"+name, found, "raise maxmemory: count 510 bytes a pending task with a payload of 200")
	case limit == 0:
		i.add(checkup.Warn, "memory"+name, found+", without a bound", "set maxmemory to half of the machine's memory, so that Redis refuses writes before the kernel ends it")
	case machine > 0 && limit > machine/2:
		i.add(checkup.Warn, "memory"+name, found+fmt.Sprintf(", on a machine with %.0f MiB", machine/(1<<20)), "leave half of the memory to the copy that Redis makes when it writes its files")
	default:
		i.add(checkup.OK, "memory"+name, found, "")
	}
}

func (i *inspection) persistence(in conn.Info, name string) {
	switch {
	case in["loading"] == "1":
		i.add(checkup.Warn, "persistence"+name, "Redis reads its files", "wait until it has; Lapse waits too")
	case in["aof_enabled"] == "0":
		found := "appendonly is off: a crash of Redis loses the tasks of the minutes before"
		if saves, known := in["config "+save]; known && saves == "" {
			found = "appendonly is off, and so is save: a crash of Redis loses all tasks"
		}
		i.add(checkup.Warn, "persistence"+name, found, "set appendonly to yes, and appendfsync to everysec or always")
	case cmp.Or(in["aof_last_write_status"], "ok") != "ok", cmp.Or(in["aof_last_bgrewrite_status"], "ok") != "ok":
		i.add(checkup.Fail, "persistence"+name, "Redis could not write its append-only file", "look at Redis' log, and at the room on its disk")
	case in["config "+appendfsync] == "no":
		i.add(checkup.Warn, "persistence"+name, "appendonly is on, but appendfsync is no: a loss of power loses up to 30 s", "set appendfsync to everysec or always")
	case in["config "+appendfsync] == "everysec":
		i.add(checkup.OK, "persistence"+name, "appendonly is on, appendfsync is everysec: a loss of power loses the last 1 to 2 s", "")
	case in["config "+appendfsync] == "always":
		i.add(checkup.OK, "persistence"+name, "appendonly is on, appendfsync is always", "")
	default:
		i.add(checkup.OK, "persistence"+name, "appendonly is on; appendfsync says what a loss of power costs", "")
	}
}

func (i *inspection) replicas(in conn.Info, name string) {
	if want, has := i.opts.WaitReplicas, in.Replicas(); has < want {
		i.add(checkup.Fail, "replicas"+name, fmt.Sprintf("%d of %d replicas that redis-wait-replicas wants", has, want), "connect the replicas, or lower redis-wait-replicas: callers get 503 until then")
	} else if want > 0 {
		i.add(checkup.OK, "replicas"+name, fmt.Sprintf("%d, of which %d must have a task", has, want), "")
	}
}

// latency measures how long a call takes, and how far the clock of Redis is from that of this
// machine.
func (i *inspection) latency(ctx context.Context) {
	var all []time.Duration
	var ahead time.Duration
	for range inspectPings {
		began := time.Now()
		now, err := i.client.Time(ctx).Result()
		if err != nil {
			i.add(checkup.Fail, "latency", err.Error(), "allow +time; look at what is between Redis and this machine")
			return
		}
		took := time.Since(began)
		// The shortest call is the best measure of the clock.
		if len(all) == 0 || took < slices.Min(all) {
			ahead = now.Sub(began.Add(took / 2))
		}
		all = append(all, took)
	}
	slices.Sort(all)
	median, worst := all[len(all)/2], all[len(all)-1]
	found := fmt.Sprintf("%v in the middle, %v at most, of %d calls", median.Round(10*time.Microsecond), worst.Round(10*time.Microsecond), len(all))
	if median > slowMedian || worst > slowWorst {
		i.add(checkup.Warn, "latency", found, "put Redis into the same zone; look for slow commands (SLOWLOG), saving to disk, and a busy machine")
	} else {
		i.add(checkup.OK, "latency", found, "")
	}
	text := fmt.Sprintf("Redis is %v ahead of this machine", ahead.Round(100*time.Microsecond))
	if ahead.Abs() > farClock {
		i.add(checkup.Warn, "clock", text, "run NTP on both machines; deadlines count by the clock of this one")
	} else {
		i.add(checkup.OK, "clock", text, "")
	}
}

// commands calls each command that the ledger needs, on keys of its own, and lists those that the
// server refuses.
func (i *inspection) commands(ctx context.Context) {
	key := i.keys.Prefix + "doctor:{" + layout.NewIncarnation() + "}"
	calls := neededCalls(key, i.keys.BusOf(i.opts.Node))
	var refused, unknown []string
	for _, call := range calls {
		err := i.client.Do(ctx, call...).Err()
		name := fmt.Sprint(call[0])
		switch {
		case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "NOSCRIPT"):
		case conn.UnknownCommand(err):
			unknown = append(unknown, name)
		case redis.HasErrorPrefix(err, "NOPERM"):
			refused = append(refused, "+"+name)
		default:
			v, do := refusal(err)
			i.add(v, "commands", fmt.Sprintf("%s: %v", name, err), do)
			return
		}
	}
	if err := i.subscribe(ctx); conn.UnknownCommand(err) {
		unknown = append(unknown, "subscribe")
	} else if redis.HasErrorPrefix(err, "NOPERM") {
		refused = append(refused, "+subscribe")
	}
	switch {
	case len(unknown) > 0:
		i.add(checkup.Fail, "commands", "the server does not know "+strings.Join(unknown, " "), "name a Redis and no proxy; undo rename-command")
	case len(refused) > 0:
		i.add(checkup.Fail, "commands", "the user may not call what Lapse needs", "ACL SETUSER the user "+strings.Join(refused, " ")+
			", the keys ~"+i.keys.Prefix+"* and the channels &"+i.keys.Prefix+"bus*")
	default:
		i.add(checkup.OK, "commands", fmt.Sprintf("all %d that Lapse needs may be called", len(calls)+1), "")
	}
}

// refusals are errors with which a server refuses calls until an operator acts, and what to do.
var refusals = []struct{ prefix, do string }{
	{"CLUSTERDOWN", "give each slot a master that runs: CLUSTER INFO and redis-cli --cluster check say which lacks one"},
	{"MISCONF", "Redis cannot write its files: look at its log, and at the room on its disk"},
	{"NOREPLICAS", "connect the replicas that min-replicas-to-write asks for, or lower it"},
	{"OOM", "raise maxmemory, or delete what else is there"},
	{"READONLY", "name the master, or use redis+sentinel:// or redis+cluster://, which find it"},
}

// refusal judges an error that is neither about the user nor about a command.
func refusal(err error) (v checkup.Verdict, do string) {
	for _, r := range refusals {
		if redis.HasErrorPrefix(err, r.prefix) {
			return checkup.Fail, r.do
		}
	}
	return checkup.Unknown, "try again when Redis takes writes"
}

// neededCalls are calls of the commands that every ledger needs, in an order that leaves no key.
// docs/operations.md lists the same commands.
func neededCalls(key, channel string) [][]any {
	hash, set, index, count, text, renamed := key+":h", key+":s", key+":z", key+":n", key+":t", key+":r"
	return [][]any{
		{"eval", "return 1", 1, key}, {"evalsha", strings.Repeat("0", 40), 1, key},
		{"hset", hash, "a", "1"}, {"hget", hash, "a"}, {"hmget", hash, "a"}, {"hlen", hash}, {"hexists", hash, "a"},
		{"hgetall", hash}, {"hscan", hash, 0}, {"hincrby", hash, "a", 1}, {"hdel", hash, "a"},
		{"sadd", set, "a"}, {"scard", set}, {"sismember", set, "a"}, {"smembers", set}, {"sscan", set, 0}, {"srem", set, "a"},
		{"zadd", index, 0, "a"}, {"zrangebylex", index, "-", "+"}, {"zrem", index, "a"},
		{"incr", count}, {"exists", count}, {"pexpire", count, 1000}, {"set", text, "1"}, {"setnx", text, "1"}, {"get", text}, {"mget", text},
		{"rename", text, renamed}, {"del", count, text, renamed, hash, set, index},
		{"info", "server"}, {"time"}, {"ping"}, {"publish", channel + ":doctor", ""},
	}
}

// subscribe listens for a moment to a channel that carries nothing.
func (i *inspection) subscribe(ctx context.Context) error {
	ps := i.client.Subscribe(ctx)
	defer ps.Close()
	if err := ps.Subscribe(ctx, i.keys.BusOf(i.opts.Node)+":doctor"); err != nil {
		return err
	}
	_, err := ps.ReceiveTimeout(ctx, conn.IOTimeout)
	return err
}
