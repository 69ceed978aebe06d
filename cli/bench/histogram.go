package bench

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

type histogram = *hdrhistogram.Histogram

// newHistogram holds durations from 1 us to 1 h, to three digits.
func newHistogram() histogram {
	return hdrhistogram.New(1, time.Hour.Microseconds(), 3)
}

// record notes a duration. A duration out of range is noted as the nearest one in range.
func record(h histogram, d time.Duration) {
	us := min(max(d.Microseconds(), 0), time.Hour.Microseconds())
	_ = h.RecordValue(us) // fails only out of range
}

// A Distribution summarises durations. All figures are milliseconds.
type Distribution struct {
	Count   int64    `json:"count"`
	Mean    float64  `json:"mean_ms"`
	P50     float64  `json:"p50_ms"`
	P90     float64  `json:"p90_ms"`
	P99     float64  `json:"p99_ms"`
	P999    float64  `json:"p999_ms"`
	Max     float64  `json:"max_ms"`
	Buckets []Bucket `json:"buckets,omitempty"`
}

// A Bucket counts durations above the bound of the previous bucket and not above its own.
type Bucket struct {
	UpTo  float64 `json:"up_to_ms"`
	Count int64   `json:"count"`
}

// bounds of the buckets, in milliseconds: 1, 2, 5 and so on.
var bounds = []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000, 3_600_000}

func distribution(h histogram) *Distribution {
	if h.TotalCount() == 0 {
		return nil
	}
	ms := func(us int64) float64 { return float64(us) / 1000 }
	d := &Distribution{
		Count: h.TotalCount(), Mean: h.Mean() / 1000, Max: ms(h.Max()),
		P50: ms(h.ValueAtPercentile(50)), P90: ms(h.ValueAtPercentile(90)),
		P99: ms(h.ValueAtPercentile(99)), P999: ms(h.ValueAtPercentile(99.9)),
	}
	counts := make([]int64, len(bounds))
	first, last := len(bounds), 0
	for _, bar := range h.Distribution() {
		if bar.Count == 0 {
			continue
		}
		i := 0
		for i < len(bounds)-1 && ms(bar.From) > bounds[i] {
			i++
		}
		counts[i] += bar.Count
		first, last = min(first, i), max(last, i)
	}
	for i := first; i <= last; i++ {
		d.Buckets = append(d.Buckets, Bucket{bounds[i], counts[i]})
	}
	return d
}

// draw prints the buckets as bars. A bucket that is not empty shows a mark.
func (d *Distribution) draw(w io.Writer) {
	const width = 50
	var most int64
	for _, b := range d.Buckets {
		most = max(most, b.Count)
	}
	for _, b := range d.Buckets {
		bar := strings.Repeat("█", int(b.Count*width/most))
		if bar == "" && b.Count > 0 {
			bar = "▏"
		}
		line := fmt.Sprintf("  <= %8s %12d %6.2f %% %s", shortMillis(b.UpTo), b.Count, 100*float64(b.Count)/float64(d.Count), bar)
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

func shortMillis(ms float64) string {
	switch {
	case ms >= 3_600_000:
		return fmt.Sprintf("%g h", ms/3_600_000)
	case ms >= 1000:
		return fmt.Sprintf("%g s", ms/1000)
	default:
		return fmt.Sprintf("%g ms", ms)
	}
}
