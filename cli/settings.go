package cli

import (
	"net"
	"net/url"
	"time"

	"github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// settings are the flags of serve, by subject. Names, units and defaults are those of tasks.Config
// where they set one of its fields.
type settings struct {
	nodeSettings
	accessSettings
	webhookSettings
	limitSettings
	respSettings
	redisSettings
	sweepSettings
	timeSettings
	logSettings
}

// nodeSettings say where the server is, and where it keeps tasks.
type nodeSettings struct {
	Listen       string `default:"127.0.0.1:7480" help:"Address to serve on, host:port."`
	HealthListen string `placeholder:"ADDR" help:"Address of a second listener, host:port, that serves /healthz, /readyz and /metrics alone, with connections of its own: it answers while all of max-connections are in use. Tokens, TLS and insecure as for listen. Default: none."`
	Data         string `placeholder:"DIR" help:"Keep tasks in this directory. One server at a time uses it. Default, without --redis: ./lapse-data."`
	BackupDir    string `placeholder:"DIR" help:"Directory below which lapse backup makes backups of data. It must exist, neither in data nor around it; on the same file system, a backup is made at once. Default: no backups are made."`
	Redis        string `placeholder:"URL" help:"Keep tasks in Redis instead: redis://, redis+sentinel://host,host/master or redis+cluster://host,host; with rediss for TLS."`
	Node         string `placeholder:"NAME" help:"Name of this node, under which Redis keeps its tasks. Default: the address it serves on."`
	Advertise    string `placeholder:"URL" help:"Where callers and other nodes reach this server, as the list of nodes shows it. Default: the address it serves on; the first of the machine if it serves on all."`
	Config       string `placeholder:"FILE" help:"YAML file with the same names, and settings of topics."`
	Insecure     bool   `help:"Serve beyond this machine without tokens, although every caller that can connect may do anything."`

	memory bool // tasks are kept in memory alone, whatever Data and Redis say
}

// accessSettings say which callers are let in, and under which names they reach the server.
type accessSettings struct {
	TokenFile   string   `placeholder:"FILE" help:"YAML list of who may call: name, scopes and sha256 of each token. See lapse token. SIGHUP reads it again."`
	AllowedHost []string `placeholder:"NAME" help:"Name in the public DNS under which a server without TLS is called, with tokens only by browsers on its own machine; *.domain for all below it, or * for every name. May be repeated. Known already: addresses, localhost, the machine's name, those of listen and advertise; beyond loopback also names without a dot and in .local, .internal and .svc."`

	TLSCert     string `placeholder:"FILE" help:"Serve over TLS with this certificate (PEM, the server's own first). SIGHUP reads it again."`
	TLSKey      string `placeholder:"FILE" help:"Its private key (PEM)."`
	TLSClientCA string `placeholder:"FILE" help:"Let in only who shows a certificate of these authorities (PEM)."`
}

// webhookSettings are about deliveries by webhook.
type webhookSettings struct {
	WebhookAllow      []string `placeholder:"NETWORK" help:"What webhooks may reach although it is not a public address: loopback, private, an address or a network such as 10.1.0.0/16; or none. May be repeated. Default: loopback on a server that itself listens there, else none."`
	WebhookSecretFile string   `placeholder:"FILE" help:"YAML mapping of names to lists of secrets (whsec_...) that webhooks are signed with. SIGHUP reads it again."`
}

// limitSettings bound what tasks and callers may use.
type limitSettings struct {
	MaxPending    int   `default:"20000000" help:"Tasks held at once, past which schedules are refused with 429."`
	MaxBytes      int64 `default:"8589934592" help:"Memory of their ids and records, past which schedules are refused with 429."`
	MaxInFlight   int   `default:"100000" help:"Deliveries not settled yet, over all topics."`
	MaxDeliveries int   `default:"4096" help:"Deliveries at the same time, over all topics that are not pulled, past which topics share them by weight."`
	MaxPayload    int   `default:"65536" help:"Bytes of a payload."`

	MaxBody        int64 `default:"16777216" help:"Bytes of a request's body. All bodies in memory together may have 16 times as much, and those of one token half of that."`
	MaxAnswers     int64 `default:"67108864" help:"Bytes of answers in memory that their callers have not read yet, past which lists and what tells of tasks are refused with 429. Those to clients of Redis count too. One token may take half of it, and lists half of it."`
	MaxConnections int   `default:"10000" help:"Connections at once. Past it a new one takes the place of one whose request does not come to its end, or of an idle one, or waits."`

	MaxConnectionsPerAddress int `placeholder:"N" help:"Connections at once from one address (of IPv6: from a /64), past which they are closed at once; the loopback address has no bound. Default: half of max-connections."`

	MaxWaiting         int `default:"10000" help:"Reserves and XREADGROUPs that wait for tasks at the same moment, past which those that find none ready are refused with 429 or TRYAGAIN."`
	MaxWaitingPerToken int `default:"5000" help:"How many of these one token may have, but never more than half of max_connections."`
}

// respSettings are about the port for clients of Redis.
type respSettings struct {
	RedisListen        string   `placeholder:"ADDR" help:"Address for clients of Redis, host:port or unix:///path, where a key with a TTL is a task. The mode of the socket file is 0600, or as in unix:///path?mode=0660. Tokens, TLS and insecure as for listen, but no TLS on a socket file. Default: none."`
	RespTopics         []string `sep:";" placeholder:"PREFIX=TOPIC" help:"Topic of the keys that begin with this prefix; the longest prefix counts. May be repeated. In the file a list, or a mapping of prefixes to topics. Keys without a topic are refused. Default: all keys are of the topic expired."`
	RespMaxConnections int      `default:"10000" help:"Connections of clients of Redis at once, past which a new one takes the place of one that has not said who it is, or does not read, or is refused. One address (of IPv6: a /64) may have max-connections-per-address of them, default half. One token may have half."`
	RespMaxCommand     int      `default:"16777216" help:"Bytes of a command of theirs. All commands in memory together may have 16 times as much, and those of one token half of that; clients that have not said who they are have as much as one command besides, together."`
	RespMaxValue       int      `default:"1048576" help:"Bytes of a value, which clients of Redis may so make larger than max-payload lets a payload be."`
	RespMaxPersistent  int      `default:"1000000" help:"Keys without a TTL on each node, past which they are refused."`
	RespPastExpiry     string   `default:"del" enum:"del,expired" help:"What a key does that EXPIREAT or its kin give a time in the past: del deletes it, as Redis does; with expired it expires, and its event comes."`
	RespNotify         string   `default:"Ex" empty:"" help:"Classes of events that subscribers get, as notify-keyspace-events of Redis has them; an empty text: none."`
	RespFlush          bool     `help:"Let FLUSHDB and FLUSHALL cancel all tasks that are keys."`
}

// redisSettings are about tasks in Redis, and the nodes that share it.
type redisSettings struct {
	RedisPrefix        string        `default:"lapse:" help:"Beginning of all keys in Redis."`
	RedisShards        int           `default:"16" help:"Over how many shards new tasks are spread. On Redis Cluster, count 100,000 tasks a shard."`
	RedisForceEviction bool          `help:"Use Redis although it may delete tasks when its memory is full."`
	RedisWaitReplicas  int           `placeholder:"N" help:"How many replicas of Redis must have a task before it counts as accepted. While fewer do, answers are 503. Default: none."`
	RedisWaitTimeout   time.Duration `default:"500ms" help:"How long Redis waits for them each time."`
	Spool              string        `placeholder:"DIR" help:"Accept tasks without an id of their caller's into this directory while Redis does not take them (202), deliver them in time, and move them to Redis when it is back. One server at a time uses it."`
	FailoverAfter      time.Duration `default:"10s" help:"For how long a node must send no heartbeat before another one adopts its tasks. The same for all nodes."`

	OnOutage        string        `default:"deliver" placeholder:"deliver|pause" help:"What a node does that was cut off from Redis for so long that others may have adopted its tasks: deliver what it has in memory, perhaps a second time, or pause until it knows. The same for all nodes."`
	Handover        bool          `help:"Hand all tasks over to other nodes before a stop. Without it they wait for the next start, or for failover-after."`
	HandoverTimeout time.Duration `default:"30s" help:"How long that may take. What is left then is not handed over."`

	DeliveryRedis string `placeholder:"URL" help:"Redis into which tasks are delivered, as streams and channels. Default: that of --redis; without either, topics cannot choose them."`
}

// sweepSettings are about the sweep, which finds overdue tasks.
type sweepSettings struct {
	SweepEvery          time.Duration `default:"1s" help:"How often to look for tasks that are overdue."`
	SweepAt             []string      `sep:";" placeholder:"TIME" help:"When to look through everything, in memory and in the ledger: a cron expression of five fields in UTC, or as in 'CRON_TZ=Europe/Berlin 0 3 * * *'. May be repeated."`
	SweepBacklog        int           `default:"100000" help:"Ready tasks past which topics without a concurrency of their own are raised."`
	SweepMaxConcurrency int           `default:"1024" help:"What they are raised to, as far as max-in-flight allows."`
	SweepHelper         []string      `sep:";" placeholder:"WHEN" help:"When to take ready tasks of other nodes, and not only when idle while one has a backlog: the word backlog, for whenever one has a backlog; or a time as in sweep-at, for the minute that it names, as in '30-44 20 * * *'. May be repeated."`
}

// timeSettings bound how long the server takes.
type timeSettings struct {
	ShutdownGrace time.Duration `default:"10s" help:"How long a stop waits for work in progress."`
	AnswerWithin  time.Duration `default:"2s" help:"How long a request waits for the ledger, past which the answer is 503."`
}

// addresses checks the settings and returns the addresses to listen on, for all callers and for
// probes; nil: missing, or wrong. All faults are noted in bad.
func (s *settings) addresses(bad *faults) (addr, health *net.TCPAddr) {
	addr = s.address("listen", s.Listen, bad)
	if s.HealthListen != "" {
		health = s.address("health-listen", s.HealthListen, bad)
	}
	redis := s.checkRedisListen(bad)
	apart("health-listen", health, "listen", addr, bad)
	apart("redis-listen", redis, "listen", addr, bad)
	apart("redis-listen", redis, "health-listen", health, bad)
	if u, err := url.Parse(s.Advertise); s.Advertise != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad.add("advertise: want http://host:port or https://host:port")
	}
	if s.HandoverTimeout < time.Second || s.HandoverTimeout > time.Hour {
		bad.add("handover-timeout: must be from %v to %v", time.Second, time.Hour)
	}
	s.checkLedger(addr, bad)
	s.checkBackups(bad)
	if s.LogFormat != "text" && s.LogFormat != "json" {
		bad.add("log-format: want text or json")
	}
	return addr, health
}

// address reads the address of a setting, nil if it is wrong: it has one fault at most.
func (s *settings) address(setting, text string, bad *faults) *net.TCPAddr {
	addr, err := net.ResolveTCPAddr("tcp", text)
	switch {
	case err != nil:
		bad.add("%s: want host:port: %w", setting, err)
		return nil
	case !addr.IP.IsLoopback() && !s.Insecure && s.TokenFile == "":
		bad.add("%s: %s can be reached from other machines, and there is no access control:"+
			" serve on 127.0.0.1, give lapse serve a --token-file, or add --insecure if the network is trusted", setting, text)
		return nil
	}
	return addr
}

// apart refuses an address that is that of another setting: one of the two could not be bound. An
// address of all interfaces is each address of its port.
func apart(setting string, a *net.TCPAddr, other string, b *net.TCPAddr, bad *faults) {
	if a == nil || b == nil || a.Port == 0 || a.Port != b.Port {
		return
	}
	if a.IP.Equal(b.IP) || everywhere(a.IP) || everywhere(b.IP) {
		bad.add("%s: must not be the address of %s, which is %s", setting, other, b)
	}
}

// everywhere reports whether an address is that of all interfaces.
func everywhere(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }

// largestPayload returns how many bytes a payload may have that some door lets in.
func (s *settings) largestPayload() int {
	if s.RedisListen == "" {
		return s.MaxPayload
	}
	return max(s.MaxPayload, min(s.RespMaxValue, respapi.MostMaxValue)) // more is refused there
}

// scheduler returns the configuration of package tasks, without its log.
func (s *settings) scheduler(topics map[string]tasks.TopicSettings, ways []tasks.Way) tasks.Config {
	return tasks.Config{
		Node:          s.Node,
		MaxPending:    s.MaxPending,
		MaxBytes:      s.MaxBytes,
		MaxInFlight:   s.MaxInFlight,
		MaxDeliveries: s.MaxDeliveries,
		MaxPayload:    s.largestPayload(),
		SweepEvery:    s.SweepEvery,

		SweepAt:             s.SweepAt,
		SweepBacklog:        s.SweepBacklog,
		SweepMaxConcurrency: s.SweepMaxConcurrency,
		SweepHelper:         s.SweepHelper,

		OnOutage:     tasks.OnOutage(s.OnOutage),
		Grace:        s.ShutdownGrace,
		AnswerWithin: s.AnswerWithin,
		Topics:       topics,
		Ways:         ways,
	}
}
