package respapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lapsehq/lapse/recovery/diskledger"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkSet sets keys with a TTL on a ledger on disk, from 50 connections with so many commands
// at a time each.
func BenchmarkSet(b *testing.B) {
	for _, pipeline := range []int{1, 16} {
		b.Run(fmt.Sprint("pipeline=", pipeline), func(b *testing.B) {
			benchmark(b, 50, pipeline, "SET key:%d v PX 3600000")
		})
	}
}

// BenchmarkGet reads keys, of which there are none.
func BenchmarkGet(b *testing.B) {
	b.Run("single", func(b *testing.B) { benchmark(b, 50, 1, "GET key:%d") })
	b.Run("pipeline", func(b *testing.B) { benchmark(b, 50, 16, "GET key:%d") })
}

// BenchmarkExec runs a transaction an operation, from 50 connections.
func BenchmarkExec(b *testing.B) {
	for name, commands := range map[string][]string{
		"set":     {"SET key:%d v PX 3600000"},
		"three":   {"SET a:%d v PX 3600000", "SET b:%d v PX 3600000", "SET c:%d v PX 3600000"},
		"limiter": {"SET key:%d 0 PX 3600000 NX", "INCR key:%d", "PTTL key:%d"},
		"read":    {"GET key:%d", "TTL key:%d"},
	} {
		b.Run(name, func(b *testing.B) {
			benchmark(b, 50, 1, slices.Concat([]string{"MULTI"}, commands, []string{"EXEC"})...)
		})
	}
}

// BenchmarkEval runs what libraries do by scripts, from 50 connections.
func BenchmarkEval(b *testing.B) {
	for name, commands := range map[string][]string{
		"lock":    {"SET key:%d t NX PX 30000", "EVAL if(redis.call('get',KEYS[1])==ARGV[1])then--[[]]return(redis.call('del',KEYS[1]))end 1 key:%d t"},
		"limiter": {"EVAL redis.call('set',KEYS[1],0,'PX',3600000,'NX');return{redis.call('incr',KEYS[1]),redis.call('pttl',KEYS[1])} 1 key:%d"},
		"read":    {"EVAL_RO return{redis.call('get',KEYS[1]),redis.call('ttl',KEYS[1])} 1 key:%d"},
	} {
		b.Run(name, func(b *testing.B) { benchmark(b, 50, 1, commands...) })
	}
}

// BenchmarkHotKey counts calls with one key, from 20 connections.
func BenchmarkHotKey(b *testing.B) {
	for name, commands := range map[string][]string{
		"commands": {"INCR hot", "PEXPIRE hot 60000"},
		"multi":    {"MULTI", "INCR hot", "PEXPIRE hot 60000", "EXEC"},
		"script":   {"EVAL redis.call('incr',KEYS[1]);return(redis.call('pexpire',KEYS[1],60000)) 1 hot"},
	} {
		b.Run(name, func(b *testing.B) { benchmark(b, 20, 1, commands...) })
	}
}

// benchmark has clients send commands, with the number of the operation in the place of %d, that
// many operations at a time.
func benchmark(b *testing.B, clients, pipeline int, commands ...string) {
	log := slog.New(slog.DiscardHandler)
	ledger, err := diskledger.Open(b.TempDir()+"/data", diskledger.Options{Log: log})
	if err != nil {
		b.Fatal(err)
	}
	scheduler, err := tasks.Open(b.Context(), ledger, tasks.Config{Log: log})
	if err != nil {
		b.Fatal(err)
	}
	server, err := New(Config{Log: log})
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Attach(scheduler); err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer func() {
		_ = server.Close(context.Background())
		_ = scheduler.Close(context.Background())
	}()
	b.ReportAllocs()
	b.ResetTimer()
	var next atomic.Int64
	var group sync.WaitGroup
	for range clients {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer nc.Close()
		group.Go(func() {
			in := bufio.NewReader(nc)
			var text []byte
			for {
				n := int(next.Add(int64(pipeline)))
				if n > b.N+pipeline {
					return
				}
				text = text[:0]
				for i := range pipeline {
					for _, command := range commands {
						text = append(text, encode(strings.Fields(strings.ReplaceAll(command, "%d", strconv.Itoa((n+i)*7919%1_000_000))))...)
					}
				}
				if _, err := nc.Write(text); err != nil {
					b.Error(err)
					return
				}
				for range pipeline * len(commands) {
					if err := skipAnswer(in); err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	group.Wait()
}

// skipAnswer reads an answer that is no error.
func skipAnswer(in *bufio.Reader) error {
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	switch n, _ := strconv.Atoi(strings.TrimSpace(line[1:])); line[0] {
	case '-':
		return errors.New(line)
	case '$':
		if n >= 0 {
			_, err = in.Discard(n + 2)
		}
	case '*':
		for range n {
			if err = skipAnswer(in); err != nil {
				break
			}
		}
	}
	return err
}
