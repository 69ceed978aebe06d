package respapi_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
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
		b.Run(fmt.Sprint("pipeline=", pipeline), func(b *testing.B) { benchmarkSet(b, 50, pipeline) })
	}
}

func benchmarkSet(b *testing.B, clients, pipeline int) {
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
			var text strings.Builder
			for {
				n := int(next.Add(int64(pipeline)))
				if n > b.N+pipeline {
					return
				}
				text.Reset()
				for i := range pipeline {
					key := fmt.Sprintf("key:%012d", (n+i)*7919%1_000_000)
					fmt.Fprintf(&text, "*5\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$1\r\nv\r\n$2\r\nPX\r\n$7\r\n3600000\r\n", len(key), key)
				}
				if _, err := nc.Write([]byte(text.String())); err != nil {
					b.Error(err)
					return
				}
				for range pipeline {
					if line, err := in.ReadString('\n'); err != nil || line != "+OK\r\n" {
						b.Errorf("the answer is %q (%v)", line, err)
						return
					}
				}
			}
		})
	}
	group.Wait()
}
