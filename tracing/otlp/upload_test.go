package otlp

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// A transport answers requests of a test.
type transport func(q *http.Request) (*http.Response, error)

func (t transport) RoundTrip(q *http.Request) (*http.Response, error) { return t(q) }

// upload makes a provider with variables, whose requests go to a transport, and what it logs.
func upload(t *testing.T, variables map[string]string, to transport) (*Provider, *bytes.Buffer) {
	t.Helper()
	variables["OTEL_TRACES_EXPORTER"] = "otlp"
	s, err := readFrom(variables)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p, err := open(Config{Node: "n", Log: slog.New(slog.NewTextHandler(&log, nil))}, s)
	if err != nil {
		t.Fatal(err)
	}
	p.client.http.Transport = to
	return p, &log
}

// The SDK looks variables up by itself, unchecked: numbers that it cannot bear must not get there.
func TestWrongBatchesAreRefused(t *testing.T) {
	for name, value := range map[string]string{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "-1", "OTEL_BSP_SCHEDULE_DELAY": "0"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(name, value)
			p, err := Open(Config{Node: "n", Log: slog.New(slog.DiscardHandler)})
			p.Close()
			if p != nil || err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

// A batch goes when it is full, or when its time is over.
func TestBatchesGoBySizeAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		p, log := upload(t, map[string]string{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2", "OTEL_BSP_SCHEDULE_DELAY": "300"},
			func(*http.Request) (*http.Response, error) {
				at = append(at, time.Since(began))
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})
		spans(p, 5)
		time.Sleep(time.Second)
		p.Close()
		if len(at) != 3 || at[0] != 0 || at[1] != 0 || at[2] != 300*time.Millisecond || strings.Contains(log.String(), "lost") {
			t.Errorf("batches went at %v: %s", at, log)
		}
	})
}

// A batch has the time that OTEL_EXPORTER_OTLP_TIMEOUT says, also if that is longer than the 30 s
// of the SDK.
func TestTimeOfABatch(t *testing.T) {
	for milliseconds, want := range map[string]time.Duration{"100": 100 * time.Millisecond, "60000": time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			took := make(chan time.Duration, 1)
			p, _ := upload(t, map[string]string{"OTEL_EXPORTER_OTLP_TIMEOUT": milliseconds}, func(q *http.Request) (*http.Response, error) {
				began := time.Now()
				<-q.Context().Done()
				took <- time.Since(began)
				return nil, q.Context().Err()
			})
			spans(p, 1)
			if got := <-took; got != want {
				t.Errorf("given up after %v; want %v", got, want)
			}
			p.Close()
		})
	}
}

// The log has no URL of the collector: its query may have a token.
func TestErrorsHaveNoURL(t *testing.T) {
	const secret = "top-secret"
	synctest.Test(t, func(t *testing.T) {
		p, log := upload(t, map[string]string{
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://user:" + secret + "@c/v1/traces?api_key=" + secret,
		}, func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") })
		spans(p, 1)
		p.Close()
		if !strings.Contains(log.String(), "no route to host") || strings.Contains(log.String(), secret) {
			t.Errorf("%s", log)
		}
	})
}

// partial returns the answer of a collector that has rejected spans.
func partial(spans int64, reason string) []byte {
	var inner []byte
	inner = protowire.AppendTag(inner, 1, protowire.VarintType)
	inner = protowire.AppendVarint(inner, uint64(spans))
	inner = protowire.AppendTag(inner, 2, protowire.BytesType)
	inner = protowire.AppendString(inner, reason)
	answer := protowire.AppendTag(nil, 1, protowire.BytesType)
	return protowire.AppendBytes(answer, inner)
}

// Spans that the collector has rejected are counted, and not sent again.
func TestRejectedSpansAreCounted(t *testing.T) {
	for _, c := range []struct {
		answer []byte
		failed string // empty: nothing is reported
		reason string
	}{
		{partial(2, "too old"), "failed=2", "too old"},
		{partial(100, "all of them"), "failed=3", "all of them"},
		{partial(1, strings.Repeat("x", maxReason-1)+"äy"), "failed=1", strings.Repeat("x", maxReason-1) + `?`},
		{partial(0, "no spans, only a hint"), "", ""},
		{partial(-1, "not a number of spans"), "", ""},
		{append([]byte{0x10, 7, 0x1d, 1, 2, 3, 4}, partial(1, "behind other fields")...), "failed=1", "behind other fields"},
		{partial(1, "cut")[:6], "", ""},
		{[]byte(`{"partialSuccess":{"rejectedSpans":1}}`), "", ""},
		{[]byte("<html>"), "", ""},
		{nil, "", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			p, log := upload(t, map[string]string{}, func(*http.Request) (*http.Response, error) {
				calls++
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(c.answer))}, nil
			})
			spans(p, 3)
			time.Sleep(time.Minute)
			if waiting := p.lost.waiting.Load(); waiting != 0 || calls != 1 {
				t.Errorf("%q: %d spans wait after %d calls", c.answer, waiting, calls)
			}
			p.Close()
			if reported := strings.Contains(log.String(), "spans were lost"); reported != (c.failed != "") ||
				!strings.Contains(log.String(), c.failed) || !strings.Contains(log.String(), c.reason) {
				t.Errorf("%q: %s", c.answer, log)
			}
		})
	}
}

// No answer makes the decoder fail.
func FuzzRejectionIn(f *testing.F) {
	f.Add(partial(2, "too old"))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if r := rejectionIn(answer); r != nil && (r.spans < 1 || len(r.reason) > maxReason) {
			t.Errorf("%+v", r)
		}
	})
}
