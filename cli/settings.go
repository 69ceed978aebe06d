package cli

import (
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/alecthomas/kong"

	"github.com/lapsehq/lapse/tasks"
)

// settings are the flags of serve. Names, units and defaults are those of
// tasks.Config where they set one of its fields.
type settings struct {
	Listen   string          `default:"127.0.0.1:7480" help:"Address to serve on, host:port."`
	Data     string          `placeholder:"DIR" help:"Keep tasks in this directory. One server at a time uses it. Default, without --redis: ./lapse-data."`
	Redis    string          `placeholder:"URL" help:"Keep tasks in Redis instead: redis://, redis+sentinel://host,host/master or redis+cluster://host,host; with rediss for TLS."`
	Node     string          `placeholder:"NAME" help:"Name of this node, under which Redis keeps its tasks. Default: the address it serves on."`
	Config   kong.ConfigFlag `placeholder:"FILE" help:"YAML file with the same names, and settings of topics."`
	Insecure bool            `help:"Serve beyond this machine, although anybody who can connect may do anything."`

	PrintConfig bool `env:"-" help:"Print the settings in effect as YAML that --config reads back, with where each comes from, and do nothing else."`

	MaxPending  int   `default:"20000000" help:"Tasks held at once, past which schedules are refused with 429."`
	MaxBytes    int64 `default:"8589934592" help:"Memory of their ids and records, past which schedules are refused with 429."`
	MaxInFlight int   `default:"100000" help:"Deliveries not settled yet, over all topics."`
	MaxPayload  int   `default:"65536" help:"Bytes of a payload."`

	RedisPrefix        string        `default:"lapse:" help:"Beginning of all keys in Redis."`
	RedisShards        int           `default:"16" help:"Over how many shards new tasks are spread, 1 to 1024. On Redis Cluster, count 100,000 tasks a shard."`
	RedisForceEviction bool          `help:"Use Redis although it may delete tasks when its memory is full."`
	FailoverAfter      time.Duration `default:"10s" help:"For how long a node must show no life sign before another one adopts its tasks. The same for all nodes."`

	SweepEvery    time.Duration `default:"1s" help:"How often to look for tasks that are overdue."`
	ShutdownGrace time.Duration `default:"10s" help:"How long a stop waits for work in progress."`
	AnswerWithin  time.Duration `default:"2s" help:"How long a request waits for the ledger, past which the answer is 503."`

	LogLevel  slog.Level `default:"info" help:"debug, info, warn or error."`
	LogFormat string     `default:"text" help:"text or json."`
}

// address checks the settings and returns what to listen on. All faults are
// noted in bad.
func (s *settings) address(bad *faults) *net.TCPAddr {
	addr, err := net.ResolveTCPAddr("tcp", s.Listen)
	switch {
	case err != nil:
		bad.add("listen: want host:port: %w", err)
	case !addr.IP.IsLoopback() && !s.Insecure:
		bad.add("listen: %s can be reached from other machines, and there is no access control:"+
			" serve on 127.0.0.1, or add --insecure if the network is trusted", s.Listen)
	}
	s.checkLedger(addr, bad)
	if s.LogFormat != "text" && s.LogFormat != "json" {
		bad.add("log-format: want text or json")
	}
	return addr
}

// scheduler is what package tasks is told.
func (s *settings) scheduler(topics map[string]tasks.TopicSettings, log *slog.Logger) tasks.Config {
	return tasks.Config{
		Node:         s.Node,
		MaxPending:   s.MaxPending,
		MaxBytes:     s.MaxBytes,
		MaxInFlight:  s.MaxInFlight,
		MaxPayload:   s.MaxPayload,
		SweepEvery:   s.SweepEvery,
		Grace:        s.ShutdownGrace,
		AnswerWithin: s.AnswerWithin,
		Topics:       topics,
		Log:          log,
	}
}

func (s *settings) logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: s.LogLevel}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
