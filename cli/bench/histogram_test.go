package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPayload(t *testing.T) {
	for _, size := range []int{MinPayload, 200, 5000} {
		p := appendPayload(nil, 7, 123456, size)
		if len(p) != size {
			t.Errorf("%d bytes, want %d", len(p), size)
		}
		// A server may write the value in other bytes.
		for _, text := range []string{string(p), strings.Replace(string(p), `{"n":`, `{"x":{},"n":`, 1)} {
			if round, number, ok := parsePayload([]byte(text)); round != 7 || number != 123456 || !ok {
				t.Errorf("%.60s: %d, %d, %v", text, round, number, ok)
			}
		}
	}
	for _, foreign := range []string{"", `{"n":"`, `{"n":"1"}`, `{"n":"07x000000001"}`, `{"n":"-1-000000001"}`, `{"n":"07--00000001"}`, `{"n":1}`} {
		if _, _, ok := parsePayload([]byte(foreign)); ok {
			t.Errorf("%s is taken for a payload", foreign)
		}
	}
}

func TestDistribution(t *testing.T) {
	h := newHistogram()
	for _, d := range []time.Duration{-time.Second, 150 * time.Microsecond, 1500 * time.Microsecond, 1600 * time.Microsecond, 48 * time.Hour} {
		record(h, d)
	}
	d := distribution(h)
	if d.Count != 5 || d.P50 < 1.49 || d.P50 > 1.51 || d.Max < 3_590_000 {
		t.Errorf("%+v", d)
	}
	var total int64
	for _, b := range d.Buckets {
		total += b.Count
	}
	if total != d.Count {
		t.Errorf("the buckets hold %d of %d", total, d.Count)
	}
	if distribution(newHistogram()) != nil {
		t.Error("nothing was recorded, want nil")
	}

	d = &Distribution{Count: 1000, Buckets: []Bucket{{0.5, 1}, {1, 0}, {2, 500}, {1000, 499}}}
	var text strings.Builder
	d.draw(&text)
	want := `  <=   0.5 ms            1   0.10 % ▏
  <=     1 ms            0   0.00 %
  <=     2 ms          500  50.00 % ██████████████████████████████████████████████████
  <=      1 s          499  49.90 % █████████████████████████████████████████████████
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}
