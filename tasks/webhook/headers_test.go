package webhook

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequest(t *testing.T) {
	type seen struct {
		method, uri, host, body string
		length                  int64
		encoding                []string
		header                  http.Header
	}
	got := make(chan seen, 1)
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.Method, r.RequestURI, r.Host, string(body), r.ContentLength, r.TransferEncoding, r.Header}
	})
	host := strings.TrimPrefix(s.URL, "http://")
	d := to(t, newWay(t, here), s.URL+"/hooks/lapse?shop=1")

	plain := http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"lapse"},
		"Ce-Specversion": {"1.0"}, "Ce-Id": {"order-42"}, "Ce-Source": {"/topics/order.unpaid"}, "Ce-Type": {"order.unpaid"},
		"Ce-Time": {"2026-11-20T14:06:41.249Z"}, "Lapse-Due": {"2026-11-20T14:06:41.249Z"}, "Lapse-Topic": {"order.unpaid"},
		"Lapse-Attempt": {"3"},
	}
	with := func(more map[string]string) http.Header {
		h := plain.Clone()
		for name, value := range more {
			h.Set(name, value)
		}
		return h
	}
	for what, c := range map[string]struct {
		payload string
		headers map[string]string
		group   string
		want    http.Header
	}{
		"plain":   {`{"order":42}`, nil, "", plain},
		"empty":   {"", nil, "", plain},
		"grouped": {"null", nil, "order-42", with(map[string]string{"lapse-group": "order-42"})},
		"bytes":   {"\x00\xff\r\n", map[string]string{"content-type": "application/octet-stream"}, "", with(map[string]string{"content-type": "application/octet-stream"})},
		"its own": {"{}", map[string]string{"tenant": "eu", "x_y.z": "ü ß", "authorization": "Bearer x", "idempotency-key": "k", "traceparent": "00-1"}, "",
			with(map[string]string{"tenant": "eu", "x_y.z": "ü ß", "authorization": "Bearer x", "idempotency-key": "k", "traceparent": "00-1"})},
		"not its own": {"{}", map[string]string{
			"host": "evil", "content-length": "1", "transfer-encoding": "chunked", "connection": "close", "te": "trailers", "trailer": "x",
			"upgrade": "h2c", "expect": "100-continue", "keep-alive": "1", "proxy-connection": "x", "proxy-authorization": "x", "accept-encoding": "gzip",
			"http2-settings": "x", "user-agent": "x",
			"ce-id": "x", "ce-extension": "x", "webhook-id": "x", "webhook-signature": "v1,x", "lapse-attempt": "99", "lapse-receipt": "x", "lapse-else": "x",
		}, "", plain},
		"the same to CGI": {"{}", map[string]string{
			"content_length": "1", "transfer_encoding": "chunked", "user.agent": "x", "ce_id": "x", "ce.type": "x", "webhook_id": "x",
			"webhook.signature": "v1,x", "lapse_attempt": "99", "lapse.topic": "x", "lapse_receipt": "x",
		}, "", plain},
	} {
		task := order(c.payload)
		task.Headers, task.Group, task.Attempt = c.headers, c.group, 3
		if err := d.Deliver(t.Context(), task); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		r := <-got
		r.header.Del("Content-Length")
		want := seen{method: "POST", uri: "/hooks/lapse?shop=1", host: host, body: c.payload, length: int64(len(c.payload)), header: c.want}
		if diff := cmp.Diff(want, r, cmp.AllowUnexported(seen{})); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
}
