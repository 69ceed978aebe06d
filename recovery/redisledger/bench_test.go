package redisledger

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/bulk"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// The floor of each benchmark is bare go-redis with the same options and as many connections,
// sending the same without token and number. Both run in turns against one server with AOF; the
// ratio is the result. -benchtime=5x means five turns; the first one warms up.

const (
	benchRecord  = 250
	benchWriters = 4
)

// benchID is an id like those that Lapse makes.
func benchID(n int) string {
	raw := [16]byte{0: 1, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
	return hex.EncodeToString(raw[:])
}

func startBench(b *testing.B) (*redistest.Server, *Ledger, redis.UniversalClient) {
	b.Helper()
	server := redistest.Start(b, "appendonly yes", "appendfsync everysec", "auto-aof-rewrite-percentage 0")
	l := newLives(server.URL()).open(b)
	adopt(b, l)
	a, err := conn.ParseURL(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	bare, err := conn.Connect(a, nil, benchWriters, conn.IOTimeout)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = bare.Close() })
	return server, l, bare
}

// inParallel runs batches from..to on benchWriters goroutines. A shard's batches
// stay on one of them.
func inParallel(b *testing.B, from, to int, write func(writer, batch int) error) {
	var wg sync.WaitGroup
	for w := range benchWriters {
		wg.Go(func() {
			for n := from + w; n < to; n += benchWriters {
				if err := write(w, n); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// bareWriter writes like the ledger, with two variadic commands for a batch.
func bareWriter(b *testing.B, c redis.UniversalClient, size int, remove bool) func(writer, batch int) error {
	record := string(make([]byte, benchRecord))
	return func(_, batch int) error {
		tag := fmt.Sprintf("bare:{%d}:", batch%DefaultShards)
		ids, pairs := make([]any, 0, size), make([]any, 0, 2*size)
		for i := range size {
			id := benchID(batch*size + i)
			ids, pairs = append(ids, id), append(pairs, id, record)
		}
		_, err := c.Pipelined(b.Context(), func(p redis.Pipeliner) error {
			if remove {
				p.SRem(b.Context(), tag+"pending", ids...)
				p.Do(b.Context(), append([]any{"hdel", tag + "tasks"}, ids...)...)
				return nil
			}
			p.SAdd(b.Context(), tag+"pending", ids...)
			p.HSet(b.Context(), tag+"tasks", pairs...)
			return nil
		})
		return err
	}
}

func ledgerWriter(b *testing.B, l *Ledger, size int, remove bool) func(writer, batch int) error {
	record := make([]byte, benchRecord)
	batches := make([]recovery.Batch, benchWriters)
	return func(writer, batch int) error {
		w := &batches[writer]
		w.Reset()
		for i := range size {
			n := batch*size + i
			c := recovery.Change{ID: []byte(benchID(n)), To: pending(int64(n)), Data: record}
			if remove {
				c.From, c.To, c.Data = c.To, recovery.Spot{}, nil
			}
			w.Add(c)
		}
		return l.Apply(b.Context(), batch%DefaultShards, w)
	}
}

// compare runs one turn of each, b.N times, and reports both median rates and the
// median ratio.
func compare(b *testing.B, unit string, per int, floor, ours func(turn int)) {
	var floorTimes, ourTimes, ratios []float64
	for turn := range b.N {
		began := time.Now()
		floor(turn)
		middle := time.Now()
		ours(turn)
		if turn > 0 || b.N == 1 {
			f, o := middle.Sub(began).Seconds(), time.Since(middle).Seconds()
			floorTimes, ourTimes, ratios = append(floorTimes, f), append(ourTimes, o), append(ratios, f/o)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(per)/median(floorTimes), "bare-"+unit+"/s")
	b.ReportMetric(float64(per)/median(ourTimes), unit+"/s")
	b.ReportMetric(median(ratios), "ratio")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func BenchmarkPut(b *testing.B)    { benchWrite(b, "puts", false) }
func BenchmarkDelete(b *testing.B) { benchWrite(b, "deletes", true) }

func benchWrite(b *testing.B, unit string, remove bool) {
	for _, size := range []int{1024, 64} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			_, l, bare := startBench(b)
			batches := 64 * 1024 / size
			if remove {
				inParallel(b, 0, b.N*batches, bareWriter(b, bare, size, false))
				inParallel(b, 0, b.N*batches, ledgerWriter(b, l, size, false))
			}
			floor, ours := bareWriter(b, bare, size, remove), ledgerWriter(b, l, size, remove)
			compare(b, unit, batches*size,
				func(turn int) { inParallel(b, turn*batches, (turn+1)*batches, floor) },
				func(turn int) { inParallel(b, turn*batches, (turn+1)*batches, ours) })
		})
	}
}

// BenchmarkLoneCaller is one change at a time: one round trip, without waiting.
func BenchmarkLoneCaller(b *testing.B) {
	_, l, bare := startBench(b)
	const per = 2000
	floor, ours := bareWriter(b, bare, 1, false), ledgerWriter(b, l, 1, false)
	write := func(turn int, write func(writer, batch int) error) {
		for n := turn * per; n < (turn+1)*per; n++ {
			if err := write(0, n); err != nil {
				b.Fatal(err)
			}
		}
	}
	compare(b, "commits", per, func(turn int) { write(turn, floor) }, func(turn int) { write(turn, ours) })
}

// A counter is a memory that only counts.
type counter struct{ read atomic.Int64 }

func (c *counter) Load([]recovery.Entry) {}

func (c *counter) Lock(page []recovery.Entry) []int {
	all := make([]int, len(page))
	for i := range all {
		all[i] = i
	}
	return all
}

func (c *counter) Resolve(page []recovery.Entry, found bool) {
	for _, e := range page {
		if found && len(e.Data) == benchRecord {
			c.read.Add(1)
		}
	}
}

// BenchmarkReplay reads everything back, compared with a loop that reads the records of a page
// together with the next page, on as many connections.
func BenchmarkReplay(b *testing.B) {
	_, l, bare := startBench(b)
	const records = 512 * 1024
	inParallel(b, 0, records/1024, ledgerWriter(b, l, 1024, false))
	b.ResetTimer()
	compare(b, "records", records,
		func(int) {
			var read atomic.Int64
			var shards errgroup.Group
			shards.SetLimit(shardsAtOnce)
			for _, s := range l.member.All() {
				shards.Go(func() error {
					n, err := readBare(b.Context(), bare, s.Keys)
					read.Add(n)
					return err
				})
			}
			if err := shards.Wait(); err != nil || read.Load() != records {
				b.Fatalf("read %d of %d: %v", read.Load(), records, err)
			}
		},
		func(int) {
			var m counter
			if err := recovery.Replay(b.Context(), l, &m, nil); err != nil || m.read.Load() != records {
				b.Fatalf("read %d of %d: %v", m.read.Load(), records, err)
			}
		})
}

// readBare counts the whole records of a shard.
func readBare(ctx context.Context, bare redis.UniversalClient, k layout.ShardKeys) (read int64, err error) {
	var ids []string
	for cursor, more := uint64(0), true; more || len(ids) > 0; {
		var page *redis.ScanCmd
		var values *redis.SliceCmd
		if _, err := bare.Pipelined(ctx, func(p redis.Pipeliner) error {
			if len(ids) > 0 {
				values = p.HMGet(ctx, k.Tasks(), ids...)
			}
			if more {
				page = p.SScan(ctx, k.Pending(), cursor, "", bulk.ScanCount)
			}
			return nil
		}); err != nil {
			return read, err
		}
		if values != nil {
			for _, v := range values.Val() {
				if r, ok := v.(string); ok && len(r) == layout.TimeLen+benchRecord {
					read++
				}
			}
		}
		ids = nil
		if page != nil {
			ids, cursor = page.Val()
			more = cursor != 0
		}
	}
	return read, nil
}

// BenchmarkDirectory files 1000 new ids in one call, looks them up and removes them, beside a
// batch of as many puts; beforehand the directory holds as many ids as the benchmark's name says.
// ratio is the time of the puts and their deletion relative to that of adding and removing.
func BenchmarkDirectory(b *testing.B) {
	for _, before := range []int{0, 1 << 20} {
		b.Run(fmt.Sprint(before), func(b *testing.B) {
			_, l, _ := startBench(b)
			const n = 1000
			at := 0
			dirEntries := func() []recovery.DirectoryUpdate {
				changes := make([]recovery.DirectoryUpdate, n)
				for i := range changes {
					changes[i] = recovery.DirectoryUpdate{ID: "order-" + benchID(at), New: recovery.DirectoryEntry{ShardID: recovery.NewShardID(1, i%16), Nonce: uint32(at)}}
					at++
				}
				return changes
			}
			file := func(changes []recovery.DirectoryUpdate) {
				now, err := l.Update(b.Context(), changes)
				if err != nil || now[0] != changes[0].New {
					b.Fatal(now[0], err)
				}
			}
			for at < before {
				file(dirEntries())
			}
			const rounds = 20
			var dirEntry, looking time.Duration
			records := make([]byte, benchRecord)
			compare(b, "changes", 2*n*rounds, func(int) {
				for range rounds {
					for _, remove := range []bool{false, true} {
						var batch recovery.Batch
						for i := range n {
							c := recovery.Change{ID: []byte(benchID(i)), To: pending(noon), Data: records}
							if remove {
								c.From, c.To, c.Data = c.To, recovery.Spot{}, nil
							}
							batch.Add(c)
						}
						if err := l.Apply(b.Context(), 0, &batch); err != nil {
							b.Fatal(err)
						}
					}
				}
			}, func(int) {
				for range rounds {
					changes := dirEntries()
					file(changes)
					for i := range changes {
						changes[i].Old, changes[i].New = changes[i].New, changes[i].Old
					}
					file(changes)
				}
			})
			changes := dirEntries()
			ids := make([]string, n)
			for i := range changes {
				ids[i] = changes[i].ID
			}
			file(changes)
			measure := func(times int, f func() error) time.Duration {
				began := time.Now()
				for range times {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
				return time.Since(began) / time.Duration(times)
			}
			looking = measure(100, func() error { _, err := l.Lookup(b.Context(), ids); return err })
			one := measure(2000, func() error { _, err := l.Lookup(b.Context(), ids[:1]); return err })
			dirEntry = measure(2000, func() error { _, err := l.Update(b.Context(), changes[:1]); return err })
			b.ReportMetric(n/looking.Seconds(), "looks/s")
			b.ReportMetric(float64(one.Microseconds()), "µs/look")
			b.ReportMetric(float64(dirEntry.Microseconds()), "µs/file")
		})
	}
}
