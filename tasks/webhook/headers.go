package webhook

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// Names of Lapse's headers, as net/http keeps them. On the wire their case means nothing.
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
)

// notFromTasks are headers that a task cannot set, besides those with Lapse's prefixes: they belong
// to the connection, or decide where the message ends or goes. In lower case, as the names of
// tasks' headers are.
var notFromTasks = map[string]bool{
	"host": true, "content-length": true, "transfer-encoding": true, "te": true, "trailer": true,
	"connection": true, "keep-alive": true, "proxy-connection": true, "upgrade": true, "http2-settings": true, "expect": true,
	"proxy-authenticate": true, "proxy-authorization": true, "accept-encoding": true, "user-agent": true,
}

// notFromTask compares names as a receiver behind CGI or WSGI does, where "_" stands for all but
// letters and digits: there, ce_id would be another ce-id.
func notFromTask(name string) bool {
	name = asHyphens.Replace(name)
	if strings.HasPrefix(name, task.DeadHeader) {
		return false // what tells of a death before this task is in its headers
	}
	return notFromTasks[name] || strings.HasPrefix(name, "ce-") || strings.HasPrefix(name, "webhook-") || strings.HasPrefix(name, "lapse-")
}

var asHyphens = strings.NewReplacer("_", "-", ".", "-")

const timeForm = "2006-01-02T15:04:05.000Z07:00"

// headers returns the headers of an attempt, without the signature.
func (r *receiver) headers(d *task.Delivery) http.Header {
	h := make(http.Header, 16+len(d.Headers))
	one := func(name, value string) { h[name] = []string{value} }
	one(contentType, "application/json")
	for name, value := range d.Headers {
		switch {
		case name == "content-type":
			one(contentType, value)
		case !notFromTask(name):
			// In lower case, where the transport does not look for them: an
			// Idempotency-Key would make it send a request again by itself.
			one(name, value)
		}
	}
	for name, value := range r.extra { // which were checked; they go before those of the task
		if name == "content-type" {
			name = contentType
		}
		one(name, value)
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
	if r.async { // otherwise the answer settles it, and a receipt must not
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
