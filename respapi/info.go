package respapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A section is a part of the answer to INFO. It has fields of Redis as far as they mean something
// here, each with a true figure.
type section struct {
	name   string
	fields func(x *call, add func(name string, value any))
}

var sections = []section{
	{"Server", serverInfo},
	{"Clients", clientsInfo},
	{"Memory", memoryInfo},
	{"Persistence", persistenceInfo},
	{"Stats", statsInfo},
	{"Replication", replicationInfo},
	{"Keyspace", keyspaceInfo},
}

// runInfo answers INFO [section ...].
func runInfo(x *call) {
	wanted := func(name string) bool {
		for _, a := range x.args[1:] {
			if is(a, name) || is(a, "default") || is(a, "all") || is(a, "everything") {
				return true
			}
		}
		return len(x.args) == 1
	}
	var b strings.Builder
	for _, s := range sections {
		if !wanted(s.name) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("# " + s.name + "\r\n")
		s.fields(x, func(name string, value any) { fmt.Fprintf(&b, "%s:%v\r\n", name, value) })
	}
	x.out.Verbatim(b.String())
}

func serverInfo(x *call, add func(string, any)) {
	up := time.Since(x.c.server.started)
	add("redis_version", redisVersion)
	add("redis_mode", "standalone")
	add("server_name", "lapse")
	add("lapse_version", x.c.server.cfg.Version)
	add("os", runtime.GOOS+" "+runtime.GOARCH)
	add("arch_bits", strconv.IntSize)
	add("process_id", os.Getpid())
	if tcp, ok := x.c.nc.LocalAddr().(*net.TCPAddr); ok {
		add("tcp_port", tcp.Port)
	}
	add("server_time_usec", time.Now().UnixMicro())
	add("uptime_in_seconds", int64(up.Seconds()))
	add("uptime_in_days", int64(up.Hours()/24))
}

func clientsInfo(x *call, add func(string, any)) {
	add("connected_clients", x.c.server.door.Guests())
	add("maxclients", x.c.server.cfg.MaxConnections)
}

func memoryInfo(_ *call, add func(string, any)) {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}}
	metrics.Read(sample)
	used := sample[0].Value.Uint64()
	add("used_memory", used)
	add("used_memory_human", fmt.Sprintf("%.2fM", float64(used)/(1<<20)))
	add("total_mapped_memory", sample[1].Value.Uint64())
	add("maxmemory", 0)
	add("maxmemory_human", "0B")
	add("maxmemory_policy", "noeviction")
	add("mem_allocator", "go")
}

// persistenceInfo says whether the server can serve keys yet, as clients want to know at first.
func persistenceInfo(x *call, add func(string, any)) {
	s := x.c.server.scheduler.Load()
	if s == nil {
		add("loading", 1)
		return
	}
	add("loading", 0)
}

func statsInfo(x *call, add func(string, any)) {
	n := &x.c.server.counts
	rejected := n.refused.Load() + n.closed.Address.Load()
	add("total_connections_received", n.accepted.Load()+rejected)
	add("total_commands_processed", n.commands.Load())
	add("rejected_connections", rejected)
	add("evicted_keys", 0)
	add("evicted_clients", 0)
	x.c.server.hub.mu.Lock()
	channels, patterns := len(x.c.server.hub.channels), len(x.c.server.hub.patterns)
	x.c.server.hub.mu.Unlock()
	add("pubsub_channels", channels)
	add("pubsub_patterns", patterns)
	add("total_error_replies", n.failed.Load())
	add("acl_access_denied_auth", n.guesses.Load())
	add("client_output_buffer_limit_disconnections", n.slow.Load())
	add("lapse_events_unsent", n.unsent.Load())
	add("lapse_events_lost", n.lost.Load())
	add("lapse_events_again", n.again.Load())
}

func replicationInfo(_ *call, add func(string, any)) {
	add("role", "master")
	add("connected_slaves", 0)
}

// keyspaceInfo counts the keys, as DBSIZE does. It is empty while they cannot be counted.
func keyspaceInfo(x *call, add func(string, any)) {
	if x.c.server.scheduler.Load() == nil {
		return
	}
	if keys, expires, err := x.countKeys(x.ctx); err == nil && keys > 0 {
		add("db0", fmt.Sprintf("keys=%d,expires=%d,avg_ttl=0", keys, expires))
	}
}

// countKeys counts the tasks of the topics of keys that wait for their first attempt, or have no
// deadline; expires are those that have one. Topics that the caller may not use do not count. It
// visits no task. An expiry that is being delivered does not count; a task of these topics that is
// no key does. Errors: those of figuresOf.
func (x *call) countKeys(ctx context.Context) (keys, expires int64, err error) {
	for topic := range x.c.server.hasKeys {
		if !x.c.caller.MayUse(topic) {
			continue
		}
		t, err := x.figuresOf(ctx, topic)
		switch {
		case err == nil:
			keys += t.Counts.Pending - t.Counts.Retrying
			expires += t.Counts.Pending - t.Counts.Retrying - t.Counts.Held
		case !errors.Is(err, tasks.ErrNoTopic):
			return 0, 0, err
		}
	}
	return max(keys, 0), max(expires, 0), nil
}

// figuresOf returns a topic with the figures of all nodes. A count has no place for a remark, so a
// part of the tasks is no answer. Errors: as of FleetTopic; why a node's figures are missing.
func (x *call) figuresOf(ctx context.Context, topic string) (task.Topic, error) {
	t, reach, err := x.scheduler().FleetTopic(ctx, topic)
	if len(reach.Missing) > 0 {
		return t, reach.Missing[0]
	}
	return t, err
}

// runRole answers ROLE: a server without replicas.
func runRole(x *call) {
	x.out.Array(3)
	x.out.Text("master")
	x.out.Int(0)
	x.out.Array(0)
}

// runWait answers WAIT numreplicas timeout. There are no replicas, so there is nothing to wait for:
// an answer to a command comes after the ledger has the write.
func runWait(x *call) {
	if _, ok := x.number(x.args[1], errNotInteger); !ok {
		return
	}
	if _, ok := x.timeout(x.args[2]); ok {
		x.out.Int(0)
	}
}
