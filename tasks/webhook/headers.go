package webhook

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Names of headers as net/http keeps them. On the wire their case means nothing.
const (
	contentType = "Content-Type"
	userAgent   = "User-Agent"

	// CloudEvents 1.0, HTTP binding, binary mode. Values would have to be
	// percent-encoded where they are not printable ASCII, or are a space, a quote or a
	// percent sign: ids, topics and times never are.
	ceSpecVersion = "Ce-Specversion"
	ceID          = "Ce-Id"
	ceSource      = "Ce-Source"
	ceType        = "Ce-Type"
	ceTime        = "Ce-Time"

	// Standard Webhooks.
	webhookID        = "Webhook-Id"
	webhookTimestamp = "Webhook-Timestamp"
	webhookSignature = "Webhook-Signature"

	lapseTopic      = "Lapse-Topic"
	lapseDue        = "Lapse-Due"
	lapseAttempt    = "Lapse-Attempt"
	lapseGroup      = "Lapse-Group"
	lapseReceipt    = "Lapse-Receipt"
	lapseLeaseUntil = "Lapse-Lease-Until"

	// With this key, and no value, which sends nothing, the transport may send a request
	// again if a kept connection turns out to have been closed by the receiver meanwhile. That
	// is no failure of the receiver, and must not cost a task an attempt and a backoff.
	idempotencyKey = "Idempotency-Key"
)

// notFromTasks are headers that a task cannot set, besides those that begin like ours: they
// belong to the connection, or decide where the message ends or goes.
var notFromTasks = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Te": true, "Trailer": true,
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Upgrade": true, "Http2-Settings": true, "Expect": true,
	"Proxy-Authenticate": true, "Proxy-Authorization": true, "Accept-Encoding": true, userAgent: true,
}

// notFromTasksBegin are the beginnings of our own names.
var notFromTasksBegin = []string{"Ce-", "Webhook-", "Lapse-"}

func ours(name string) bool {
	for _, begin := range notFromTasksBegin {
		if strings.HasPrefix(name, begin) {
			return true
		}
	}
	return notFromTasks[name]
}

const timeForm = "2006-01-02T15:04:05.000Z07:00"

// headers are those of an attempt, but for the signature.
func (r *receiver) headers(d *tasks.Delivery) http.Header {
	h := make(http.Header, 16+len(d.Headers))
	for name, value := range d.Headers {
		if name = http.CanonicalHeaderKey(name); !ours(name) {
			h[name] = []string{value}
		}
	}
	one := func(name, value string) { h[name] = []string{value} }
	if h[contentType] == nil {
		one(contentType, "application/json")
	}
	if h[idempotencyKey] == nil {
		h[idempotencyKey] = nil
	}
	one(userAgent, "lapse")
	due := d.Due.UTC().Format(timeForm)
	one(ceSpecVersion, "1.0")
	one(ceID, d.ID)
	one(ceSource, r.source)
	one(ceType, r.topic)
	one(ceTime, due)
	one(lapseTopic, r.topic)
	one(lapseDue, due)
	one(lapseAttempt, strconv.Itoa(d.Attempt))
	if d.Group != "" {
		one(lapseGroup, d.Group)
	}
	if r.async { // else the answer settles it, and nobody else should
		one(lapseReceipt, d.Receipt())
		one(lapseLeaseUntil, d.LeaseUntil.UTC().Format(timeForm))
	}
	return h
}

// signedID is a task's id as it is signed. The signature is one of id.timestamp.payload, so
// an id with a full stop could be read as another id, another timestamp and another
// payload; the specification forbids it, and Lapse's ids may have one.
func signedID(id string) string { return strings.ReplaceAll(id, ".", "%2E") }

// sign adds the signature. It reports false if the secret is not there.
func (r *receiver) sign(h http.Header, id string, at time.Time, payload []byte) bool {
	id = signedID(id)
	signatures, ok := r.way.secrets.Load().sign(r.secret, id, at, payload)
	if ok {
		h[webhookID] = []string{id}
		h[webhookTimestamp] = []string{strconv.FormatInt(at.Unix(), 10)}
		h[webhookSignature] = []string{signatures}
	}
	return ok
}
