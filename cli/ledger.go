package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/tasks"
)

// defaultData is the data directory without a setting.
const defaultData = "./lapse-data"

// checkLedger checks the settings that say where tasks are kept.
func (s *settings) checkLedger(addr *net.TCPAddr, bad *faults) {
	if s.Redis == "" {
		if s.Data == "" && !s.memory {
			s.Data = defaultData
		}
		if s.Spool != "" {
			bad.add("spool: only with redis; without it, all tasks are on this machine anyway")
		}
		return
	}
	if s.Data != "" {
		bad.add("data, redis: tasks are kept in one of them, so give only one")
	}
	if addr != nil && addr.Port == 0 && s.Node == "" {
		bad.add("node: want a name, since a port that is chosen anew at every start cannot name the tasks in Redis")
	}
	options := s.redis(nil, nil)
	if options.Node == "" {
		options.Node = "127.0.0.1:7480" // like the address that is found later
	}
	bad.include(options.Validate())
}

// ledger opens the ledger of a server with that address. While it cannot be reached, waiting is
// called after each attempt.
func (s *settings) ledger(addr net.Addr, log *slog.Logger, waiting func()) (recovery.Ledger, error) {
	switch {
	case s.memory:
		return memledger.New(), nil
	case s.Redis == "":
		return diskledger.Open(s.Data, diskledger.Options{Log: log})
	}
	options := s.redis(log, func(error) { waiting() })
	options.Address = s.advertised(addr)
	return redisledger.Open(options)
}

// spool opens the ledger for tasks that are accepted while Redis is away; nil if there is none.
func (s *settings) spool(log *slog.Logger) (recovery.Ledger, error) {
	if s.Spool == "" {
		return nil, nil
	}
	return diskledger.Open(s.Spool, diskledger.Options{Log: log})
}

// advertised returns where other nodes reach the server.
func (s *settings) advertised(addr net.Addr) string {
	switch {
	case s.Advertise != "":
		return s.Advertise
	case s.TLSCert != "":
		return "https://" + nodeName(addr)
	}
	return "http://" + nodeName(addr)
}

func (s *settings) redis(log *slog.Logger, wait func(error)) redisledger.Options {
	return redisledger.Options{
		URL:           s.Redis,
		Node:          s.Node,
		Prefix:        s.RedisPrefix,
		Shards:        s.RedisShards,
		ForceEviction: s.RedisForceEviction,
		FailoverAfter: s.FailoverAfter,
		WaitReplicas:  s.RedisWaitReplicas,
		WaitTimeout:   s.RedisWaitTimeout,
		Version:       buildVersion(),
		Format:        tasks.Format,
		Wait:          wait,
		Log:           log,
	}
}

// storage names where the tasks are, for people.
func (s *settings) storage() string {
	switch {
	case s.memory:
		return "in memory, until this server ends"
	case s.Redis == "":
		data, err := filepath.Abs(s.Data)
		if err != nil {
			data = s.Data
		}
		return "on disk in " + data
	}
	return fmt.Sprintf("in %s under the name %s", redisledger.WithoutSecrets(s.Redis), s.Node)
}

// healthOf returns the health of a ledger that the server waits for.
func healthOf(l recovery.Ledger) func() recovery.Health {
	if reporter, ok := l.(recovery.Reporter); ok {
		return reporter.Health
	}
	return nil
}

// nodeName is the address of a server, as other nodes know it. A server on all addresses of its
// machine is named by the first that is not a loopback one.
func nodeName(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	named := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: tcp.Port}
	mine, err := net.InterfaceAddrs()
	if err != nil {
		return named.String()
	}
	for _, a := range mine {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			if v4 := n.IP.To4(); v4 != nil {
				named.IP = v4
				break
			}
			if named.IP.IsLoopback() {
				named.IP = n.IP
			}
		}
	}
	return named.String()
}

// redisTo makes the Redis client log there.
func redisTo(log *slog.Logger) { redis.SetLogger(redisLog{log}) }

// redisLog logs the messages of the Redis client. The ledger reports those that matter, so the
// level is debug.
type redisLog struct{ log *slog.Logger }

// Printf implements the client's interface.
func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "redis client: "+strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}
