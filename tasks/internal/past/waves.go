package past

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// Bounds of waves that are kept.
const (
	// waveTime is from how long before its deadline until how long after it a task that ends is
	// counted: a day.
	waveTime = 24 * time.Hour
	// chunkTopics is how many topics of a minute make a row. Each has 155 bytes at most.
	chunkTopics = 256
	// maxWaveBytes bounds what one look writes. The next one goes on.
	maxWaveBytes = 256 << 10
	// startRows is the part of the rows that say since when a process has counted. The others have
	// no part.
	startRows = "start"
)

// waves is what a process knows of the rows of its waves.
type waves struct {
	looked time.Time          // the minute in which all that had changed was written
	hour   time.Time          // in which the row of the start was written
	sums   map[int64][]uint64 // of the rows that the ledger has, by minute and position
}

// Name is that of the process, in rows.
func (p *Past) Name() string { return p.name }

// keepWaves writes how tasks have ended, where that has changed since, once a minute. What the
// ledger does not take is written later, and is not dropped: it is in memory for a day.
func (p *Past) keepWaves(ctx context.Context, now time.Time, last bool) {
	minute := now.Truncate(time.Minute)
	w := &p.waves
	if p.Archive == nil || p.Ended == nil || w.looked.Equal(minute) && !last {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, KeepWithin)
	defer cancel()
	for more := true; more; more = more && last {
		var rows []recovery.Row
		if hour := now.Truncate(time.Hour); !w.hour.Equal(hour) {
			w.sums = nil // all of them are written again, if the ledger has lost some
			rows = append(rows, recovery.Row{Part: startRows, At: hour, Name: p.name, Value: strconv.AppendInt(nil, p.start.UnixMilli(), 10)})
		}
		changed, sums, full := p.changedWaves(now)
		if err := p.Archive.Keep(ctx, recovery.WaveRows, now, append(rows, changed...)); err != nil {
			p.mu.Lock()
			p.failed = now
			p.mu.Unlock()
			return
		}
		w.hour, w.sums = now.Truncate(time.Hour), sums
		if more = full; !more {
			w.looked = minute
		}
	}
}

// changedWaves returns rows that the ledger does not have as they are, up to maxWaveBytes, and the
// sums of all rows once it has them. full: there may be more.
func (p *Past) changedWaves(now time.Time) (rows []recovery.Row, sums map[int64][]uint64, full bool) {
	sums = make(map[int64][]uint64, len(p.waves.sums))
	bytes, n := 0, 0
	var minute int64
	var value []byte
	end := func() { // of a chunk
		if n == 0 {
			return
		}
		at, sum := len(sums[minute]), xxhash.Sum64(value)
		old := p.waves.sums[minute]
		switch {
		case at < len(old) && old[at] == sum:
		case bytes >= maxWaveBytes:
			full, sum = true, 0
		default:
			row := recovery.Row{At: time.Unix(60*minute, 0).UTC(), Name: p.name + "/" + strconv.Itoa(at), Value: slices.Clone(value)}
			bytes += row.Size()
			rows = append(rows, row)
		}
		sums[minute] = append(sums[minute], sum)
		value, n = value[:0], 0
	}
	from, to := now.Add(-waveTime).Unix()/60, now.Add(waveTime).Unix()/60+1
	p.Ended(from, to, func(topic string, at int64, c *task.WaveCounts) {
		if at != minute || n == chunkTopics {
			end()
			minute = at
		}
		if n++; n == 1 {
			value = append(value, waveVersion)
		}
		value = appendWave(value, topic, c)
	})
	end()
	return rows, sums, full
}

// A value of a row: a version, and for each topic its length, its name, varints (Delivered, Dead,
// Cancelled, Skipped) and the last end in Unix ms, 0 if there is none.
const waveVersion = 1

func appendWave(b []byte, topic string, c *task.WaveCounts) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(topic))), topic...)
	for _, n := range []int64{c.Delivered, c.Dead, c.Cancelled, c.Skipped} {
		b = binary.AppendVarint(b, n)
	}
	last := int64(0)
	if !c.LastEnd.IsZero() {
		last = c.LastEnd.UnixMilli()
	}
	return binary.AppendVarint(b, last)
}

// eachWave visits the topics of a row. Errors: errRow.
func eachWave(b []byte, visit func(topic string, c *task.WaveCounts)) error {
	if len(b) == 0 || b[0] != waveVersion {
		return errRow
	}
	for b = b[1:]; len(b) > 0; {
		length, size := binary.Uvarint(b)
		if size <= 0 || length > uint64(len(b)-size) {
			return errRow
		}
		topic := string(b[size : size+int(length)])
		b = b[size+int(length):]
		var c task.WaveCounts
		last := int64(0)
		for _, n := range []*int64{&c.Delivered, &c.Dead, &c.Cancelled, &c.Skipped, &last} {
			if *n, size = binary.Varint(b); size <= 0 {
				return errRow
			}
			b = b[size:]
		}
		if last != 0 {
			c.LastEnd = time.UnixMilli(last).UTC()
		}
		visit(topic, &c)
	}
	return nil
}

// KeptWaves is what the ledger keeps of a wave.
type KeptWaves struct {
	tally *task.WaveTally
	since time.Time // from when on what has ended is counted; zero: not known by the ledger
	whole bool      // all of it was read
}

// Waves reads what the ledger keeps of a wave: what processes have counted that are not live, of
// all nodes or of one. live has since when the others have counted. The grant of ctx bounds the
// topics.
func (p *Past) Waves(ctx context.Context, q task.WaveQuery, node string, live map[string]time.Time) *KeptWaves {
	k := &KeptWaves{tally: task.NewWaveTally(ctx, q.Topic), whole: true}
	if p.Archive == nil {
		return k
	}
	if p.Down() {
		k.whole = false
		return k
	}
	read := func(part string, from, to time.Time, visit func(r *recovery.Row) error) {
		err := p.Archive.Rows(ctx, recovery.WaveRows, part, from, to, func(r recovery.Row) bool {
			k.whole = visit(&r) == nil && k.whole
			return true
		})
		k.whole = k.whole && err == nil
	}
	read("", q.From, q.To, func(r *recovery.Row) error {
		process := r.Name[:max(0, strings.LastIndexByte(r.Name, '/'))]
		if _, is := live[process]; is || node != "" && nodeOf(process) != node {
			return nil
		}
		return eachWave(r.Value, k.tally.Enter)
	})
	starts := make(map[string]time.Time, len(live)) // of the first process that is known, by node
	for process, at := range live {
		starts[nodeOf(process)] = at
	}
	now := p.Clock()
	read(startRows, now.Add(-waveTime-2*time.Hour), now.Add(time.Hour), func(r *recovery.Row) error {
		at, err := strconv.ParseInt(string(r.Value), 10, 64)
		if start, is := starts[nodeOf(r.Name)]; is && err == nil && time.UnixMilli(at).Before(start) {
			starts[nodeOf(r.Name)] = time.UnixMilli(at).UTC()
		}
		return err
	})
	for _, at := range starts {
		if at.After(k.since) {
			k.since = at
		}
	}
	if oldest := now.Add(-waveTime).UTC().Truncate(time.Minute); k.since.Before(oldest) {
		k.since = oldest
	}
	return k
}

// AddTo adds it to the wave of the processes that live.
func (k *KeptWaves) AddTo(w *task.Wave) {
	k.tally.AddTo(w)
	if !k.since.IsZero() && (k.whole || k.since.After(w.Since)) {
		w.Since = k.since
	}
	w.Complete = w.Complete && k.whole
}
