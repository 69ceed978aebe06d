package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	pb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A client sends spans to the collector. It implements otlptrace.Client.
type client struct {
	settings *settings
	http     http.Client
	version  string
	ending   chan struct{} // closed when the last spans are sent: they get one attempt each
}

func newClient(s *settings, version string) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone() // goes by HTTPS_PROXY
	transport.TLSClientConfig = s.tls
	transport.MaxIdleConnsPerHost = 1
	return &client{
		settings: s, version: version, ending: make(chan struct{}),
		http: http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Start implements otlptrace.Client.
func (c *client) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *client) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It tries again while there is time, if another attempt
// can help. Its error is a *rejection if the collector has taken a part of the spans.
func (c *client) UploadTraces(ctx context.Context, spans []*pb.ResourceSpans) error {
	ctx, cancel := context.WithTimeout(ctx, c.settings.timeout)
	defer cancel()
	// On the wire it is an ExportTraceServiceRequest, whose package would link gRPC.
	body, err := proto.Marshal(&pb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	if c.settings.gzip {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(body) // to memory: it cannot fail
		_ = z.Close()
		body = b.Bytes()
	}
	for pause := time.Second; ; pause = min(2*pause, maxPause) {
		again, after, err := c.post(ctx, body)
		if err == nil || !again {
			return err
		}
		timer := time.NewTimer(max(after, pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-c.ending:
			timer.Stop()
			return err
		}
	}
}

const (
	maxPause  = 5 * time.Second // between two attempts, unless the collector asks for more
	maxAnswer = 64 << 10        // bytes that are read of an answer
)

// post makes one attempt. It reports whether another one can help, and after which time at least.
func (c *client) post(ctx context.Context, body []byte) (again bool, after time.Duration, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.settings.endpoint.String(), bytes.NewReader(body))
	if err != nil {
		return false, 0, withoutURL(err)
	}
	for name, values := range c.settings.headers {
		q.Header[name] = values
	}
	q.Header.Set("Content-Type", "application/x-protobuf")
	q.Header.Set("User-Agent", "lapse/"+c.version)
	if c.settings.gzip {
		q.Header.Set("Content-Encoding", "gzip")
	}
	a, err := c.http.Do(q)
	if err != nil {
		return true, 0, withoutURL(err)
	}
	defer a.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(a.Body, maxAnswer)) // to the end, to keep the connection
	switch a.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(a.Header.Get("Retry-After"))
		return true, time.Duration(min(max(seconds, 0), 3600)) * time.Second, fmt.Errorf("the collector has answered %s", a.Status)
	}
	if a.StatusCode/100 != 2 {
		return false, 0, fmt.Errorf("the collector has answered %s", a.Status)
	}
	if r := rejectionIn(answer); r != nil {
		return false, 0, r
	}
	return false, 0, nil
}

// withoutURL returns the cause of an error of http.Client, which names the URL. That may be secret:
// collectors take tokens in its query.
func withoutURL(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}
