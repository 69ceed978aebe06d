package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// canary is what no answer may repeat.
const canary = "Zx81secret"

// Each of these is refused with a problem, and changes nothing.
var badInput = []struct {
	name, method, path, body string
	status                   int
	kind, field              string
	headers                  []string
}{
	// Not JSON.
	{"empty body", "POST", "/v1/tasks", "", 400, "malformed", "", []string{"Content-Type: application/json"}},
	{"spaces only", "POST", "/v1/tasks", " \n", 400, "malformed", "", nil},
	{"not JSON", "POST", "/v1/tasks", "Zx81secret", 400, "malformed", "", nil},
	{"cut off", "POST", "/v1/tasks", `{"topic":"t"`, 400, "malformed", "", nil},
	{"cut off in a string", "POST", "/v1/tasks", `{"topic":"Zx81secret`, 400, "malformed", "", nil},
	{"garbage after the end", "POST", "/v1/tasks", `{"topic":"t"} Zx81secret`, 400, "malformed", "", nil},
	{"a second value", "POST", "/v1/tasks", `{"topic":"t"}{"topic":"t"}`, 400, "malformed", "", nil},
	{"a NUL at the end", "POST", "/v1/tasks", "{\"topic\":\"t\"}\x00", 400, "malformed", "", nil},
	{"comma at the end", "POST", "/v1/tasks", `{"topic":"t",}`, 400, "malformed", "", nil},
	{"single quotes", "POST", "/v1/tasks", `{'topic':'t'}`, 400, "malformed", "", nil},
	{"bare field name", "POST", "/v1/tasks", `{topic:"t"}`, 400, "malformed", "", nil},
	{"comment", "POST", "/v1/tasks", `{"topic":"t" /* Zx81secret */}`, 400, "malformed", "", nil},
	{"NaN", "POST", "/v1/tasks", `{"topic":"t","payload":NaN}`, 400, "malformed", "", nil},
	{"leading zero", "POST", "/v1/tasks", `{"topic":"t","payload":01}`, 400, "malformed", "", nil},
	{"leading plus", "POST", "/v1/tasks", `{"topic":"t","payload":+1}`, 400, "malformed", "", nil},
	{"no digit after the point", "POST", "/v1/tasks", `{"topic":"t","payload":1.}`, 400, "malformed", "", nil},
	{"control character", "POST", "/v1/tasks", "{\"topic\":\"t\",\"payload\":\"\x01\"}", 400, "malformed", "", nil},
	{"unknown escape", "POST", "/v1/tasks", `{"topic":"t","payload":"\x41"}`, 400, "malformed", "", nil},
	{"half a surrogate pair", "POST", "/v1/tasks", `{"topic":"t","group":"\ud800"}`, 400, "malformed", "", nil},
	{"invalid UTF-8", "POST", "/v1/tasks", "{\"topic\":\"t\",\"payload\":\"\xff\"}", 400, "malformed", "", nil},
	{"UTF-16", "POST", "/v1/tasks", "\xfe\xff\x00{\x00}", 400, "malformed", "", nil},
	{"byte order mark", "POST", "/v1/tasks", "\ufeff{\"topic\":\"t\"}", 400, "malformed", "", nil},
	{"deep nesting", "POST", "/v1/tasks", `{"topic":"t","payload":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, 400, "malformed", "", nil},
	{"very deep nesting", "POST", "/v1/tasks", strings.Repeat(`{"payload":`, 100_000), 400, "malformed", "", nil},

	// The wrong shape.
	{"array", "POST", "/v1/tasks", `[]`, 422, "invalid", "body", nil},
	{"null", "POST", "/v1/tasks", `null`, 422, "invalid", "body", nil},
	{"string", "POST", "/v1/tasks", `"Zx81secret"`, 422, "invalid", "body", nil},
	{"unknown field", "POST", "/v1/tasks", `{"topic":"t","dealy":"Zx81secret"}`, 422, "invalid", "dealy", nil},
	{"field in upper case", "POST", "/v1/tasks", `{"topic":"t","Delay":"1s"}`, 422, "invalid", "Delay", nil},
	{"field given twice", "POST", "/v1/tasks", `{"topic":"t","payload":1,"payload":2}`, 422, "invalid", "payload", nil},
	{"field given twice by an escape", "POST", "/v1/tasks", `{"topic":"t","\u0074opic":"u"}`, 422, "invalid", "topic", nil},
	{"header given twice", "POST", "/v1/tasks", `{"topic":"t","headers":{"a":"1","a":"2"}}`, 422, "invalid", "headers.a", nil},
	{"unknown field of an answer", "POST", "/v1/tasks", `{"topic":"t","state":"pending"}`, 422, "invalid", "state", nil},
	{"a later release's field", "PUT", "/v1/topics/t", `{"fanout":{"per_second":500}}`, 422, "invalid", "fanout", nil},
	{"65 unknown fields", "POST", "/v1/tasks", manyFields(65), 422, "invalid", "x0", nil},

	// The id, the topic and the rest.
	{"no topic", "POST", "/v1/tasks", `{"delay":"1s"}`, 422, "invalid", "topic", nil},
	{"empty topic", "POST", "/v1/tasks", `{"topic":""}`, 422, "invalid", "topic", nil},
	{"topic of another type", "POST", "/v1/tasks", `{"topic":7}`, 422, "invalid", "topic", nil},
	{"topic in another alphabet", "POST", "/v1/tasks", `{"topic":"a b Zx81secret"}`, 422, "invalid", "topic", nil},
	{"topic too long", "POST", "/v1/tasks", `{"topic":"` + strings.Repeat("t", 129) + `"}`, 422, "invalid", "topic", nil},
	{"empty id", "POST", "/v1/tasks", `{"id":"","topic":"t"}`, 422, "invalid", "id", nil},
	{"id null", "POST", "/v1/tasks", `{"id":null,"topic":"t"}`, 422, "invalid", "id", nil},
	{"id of another type", "POST", "/v1/tasks", `{"id":42,"topic":"t"}`, 422, "invalid", "id", nil},
	{"id with a slash", "POST", "/v1/tasks", `{"id":"a/Zx81secret","topic":"t"}`, 422, "invalid", "id", nil},
	{"id with a line feed", "POST", "/v1/tasks", `{"id":"a\nZx81secret","topic":"t"}`, 422, "invalid", "id", nil},
	{"id begins with a dash", "POST", "/v1/tasks", `{"id":"-Zx81secret","topic":"t"}`, 422, "invalid", "id", nil},
	{"id too long", "POST", "/v1/tasks", `{"id":"` + strings.Repeat("i", 129) + `","topic":"t"}`, 422, "invalid", "id", nil},
	{"group of another type", "POST", "/v1/tasks", `{"topic":"t","group":{}}`, 422, "invalid", "group", nil},
	{"empty group", "POST", "/v1/tasks", `{"topic":"t","group":""}`, 422, "invalid", "group", nil},
	{"empty group of a replacement", "PUT", "/v1/tasks/a", `{"topic":"t","group":""}`, 422, "invalid", "group", nil},
	{"group in another alphabet", "POST", "/v1/tasks", `{"topic":"t","group":"!"}`, 422, "invalid", "group", nil},
	{"headers of another type", "POST", "/v1/tasks", `{"topic":"t","headers":[]}`, 422, "invalid", "headers", nil},
	{"header value of another type", "POST", "/v1/tasks", `{"topic":"t","headers":{"n":1}}`, 422, "invalid", "headers.n", nil},
	{"header name in upper case", "POST", "/v1/tasks", `{"topic":"t","headers":{"N":"1"}}`, 422, "invalid", "headers", nil},
	{"65 headers", "POST", "/v1/tasks", `{"topic":"t","headers":` + manyFields(65) + `}`, 422, "invalid", "headers", nil},
	{"headers too large", "POST", "/v1/tasks", `{"topic":"t","headers":{"n":"` + strings.Repeat("v", 9000) + `"}}`, 413, "too_large", "", nil},
	{"payload too large", "POST", "/v1/tasks", `{"topic":"t","payload":"` + strings.Repeat("p", 65<<10) + `"}`, 413, "too_large", "", nil},
	{"body too large", "POST", "/v1/tasks", `{"topic":"t","payload":"` + strings.Repeat("p", 17<<20) + `"}`, 413, "too_large", "", nil},

	// Deadlines.
	{"delay and due_at", "POST", "/v1/tasks", `{"topic":"t","delay":"1s","due_at":"2031-01-01T00:00:00Z"}`, 422, "invalid", "delay", nil},
	{"delay of 0 and due_at", "POST", "/v1/tasks", `{"topic":"t","delay":0,"due_at":"2031-01-01T00:00:00Z"}`, 422, "invalid", "due_at", nil},
	{"negative delay", "POST", "/v1/tasks", `{"topic":"t","delay":"-1s"}`, 422, "invalid", "delay", nil},
	{"negative milliseconds", "POST", "/v1/tasks", `{"topic":"t","delay":-1}`, 422, "invalid", "delay", nil},
	{"delay without a unit", "POST", "/v1/tasks", `{"topic":"t","delay":"30"}`, 422, "invalid", "delay", nil},
	{"delay in weeks", "POST", "/v1/tasks", `{"topic":"t","delay":"1w"}`, 422, "invalid", "delay", nil},
	{"delay is no duration", "POST", "/v1/tasks", `{"topic":"t","delay":"Zx81secret"}`, 422, "invalid", "delay", nil},
	{"delay of another type", "POST", "/v1/tasks", `{"topic":"t","delay":true}`, 422, "invalid", "delay", nil},
	{"delay above 10 years", "POST", "/v1/tasks", `{"topic":"t","delay":"3661d"}`, 422, "invalid", "delay", nil},
	{"delay overflows", "POST", "/v1/tasks", `{"topic":"t","delay":"999999999d"}`, 422, "invalid", "delay", nil},
	{"milliseconds overflow", "POST", "/v1/tasks", `{"topic":"t","delay":1e300}`, 422, "invalid", "delay", nil},
	{"due_at is a number", "POST", "/v1/tasks", `{"topic":"t","due_at":1700000000}`, 422, "invalid", "due_at", nil},
	{"due_at is no time", "POST", "/v1/tasks", `{"topic":"t","due_at":"Zx81secret"}`, 422, "invalid", "due_at", nil},
	{"due_at without a zone", "POST", "/v1/tasks", `{"topic":"t","due_at":"2031-01-01T00:00:00"}`, 422, "invalid", "due_at", nil},
	{"due_at with a comma", "POST", "/v1/tasks", `{"topic":"t","due_at":"2031-01-01T00:00:00,5Z"}`, 422, "invalid", "due_at", nil},
	{"due_at in month 13", "POST", "/v1/tasks", `{"topic":"t","due_at":"2031-13-01T00:00:00Z"}`, 422, "invalid", "due_at", nil},
	{"due_at above 10 years", "POST", "/v1/tasks", `{"topic":"t","due_at":"2099-01-01T00:00:00Z"}`, 422, "invalid", "due_at", nil},
	{"max_lateness of 0", "POST", "/v1/tasks", `{"topic":"t","max_lateness":0}`, 422, "invalid", "max_lateness", nil},

	// Content types, methods, paths and parameters.
	{"no Content-Type", "POST", "/v1/tasks", `{"topic":"t"}`, 415, "unsupported_media_type", "", []string{"Content-Type:"}},
	{"form", "POST", "/v1/tasks", `{"topic":"t"}`, 415, "unsupported_media_type", "", []string{"Content-Type: application/x-www-form-urlencoded"}},
	{"text", "POST", "/v1/tasks", `{"topic":"t"}`, 415, "unsupported_media_type", "", []string{"Content-Type: text/plain"}},
	{"another charset", "POST", "/v1/tasks", `{"topic":"t"}`, 415, "unsupported_media_type", "", []string{"Content-Type: application/json; charset=latin1"}},
	{"lines for one task", "POST", "/v1/tasks", `{"topic":"t"}`, 415, "unsupported_media_type", "", []string{"Content-Type: application/x-ndjson"}},
	{"compressed", "POST", "/v1/tasks", `{"topic":"t"}`, 415, "unsupported_media_type", "", []string{"Content-Encoding: gzip"}},
	{"broken Content-Type", "POST", "/v1/tasks", `{"topic":"t"}`, 415, "unsupported_media_type", "", []string{"Content-Type: application/json; ="}},
	{"Accept without JSON", "POST", "/v1/tasks", `{"topic":"t"}`, 406, "not_acceptable", "", []string{"Accept: text/html, application/xml;q=0.9"}},
	{"Accept refuses JSON", "POST", "/v1/tasks", `{"topic":"t"}`, 406, "not_acceptable", "", []string{"Accept: application/json;q=0"}},
	{"another origin", "POST", "/v1/tasks", `{"topic":"t"}`, 403, "cross_origin", "", []string{"Origin: https://evil.example", "Sec-Fetch-Site: cross-site"}},
	{"unknown path", "POST", "/v1/task", `{"topic":"t"}`, 404, "no_such_route", "", nil},
	{"slash at the end", "POST", "/v1/tasks/", `{"topic":"t"}`, 404, "no_such_route", "", nil},
	{"another method", "PUT", "/v1/tasks", `{"topic":"t"}`, 405, "method_not_allowed", "", nil},
	{"unknown parameter", "GET", "/v1/tasks?tpoic=Zx81secret", "", 422, "invalid", "tpoic", nil},
	{"parameter of another type", "GET", "/v1/tasks?limit=Zx81secret", "", 422, "invalid", "limit", nil},
	{"limit of 0", "GET", "/v1/tasks?limit=0", "", 422, "invalid", "limit", nil},
	{"limit of 1001", "GET", "/v1/tasks?limit=1001", "", 422, "invalid", "limit", nil},
	{"unknown state", "GET", "/v1/tasks?state=Zx81secret", "", 422, "invalid", "state", nil},
	{"window of 0", "GET", "/v1/forecast?window=0", "", 422, "invalid", "window", nil},
	{"window is no duration", "GET", "/v1/forecast?window=Zx81secret", "", 422, "invalid", "window", nil},
	{"window above 10 years", "GET", "/v1/forecast?window=3661d", "", 422, "invalid", "window", nil},
	{"negative window", "GET", "/v1/forecast?window=-1h", "", 422, "invalid", "window", nil},
	{"step is no duration", "GET", "/v1/forecast?step=Zx81secret", "", 422, "invalid", "step", nil},
	{"step of 0", "GET", "/v1/forecast?step=0", "", 422, "invalid", "step", nil},
	{"step above the window", "GET", "/v1/forecast?window=1h&step=2h", "", 422, "invalid", "step", nil},
	{"1001 steps", "GET", "/v1/forecast?window=1001s&step=1s", "", 422, "invalid", "step", nil},
	{"forecast of no topic", "GET", "/v1/forecast?topic=a%20Zx81secret", "", 422, "invalid", "topic", nil},
	{"purge of no topic", "DELETE", "/v1/topics/-/tasks", "", 422, "invalid", "topic", nil},
	{"group of no name", "DELETE", "/v1/groups/-", "", 422, "invalid", "group", nil},
	{"group with a slash", "DELETE", "/v1/groups/a%2Fb", "", 422, "invalid", "group", nil},
	{"list of a group of no name", "GET", "/v1/groups/-", "", 422, "invalid", "group", nil},
	{"group of a list in another alphabet", "GET", "/v1/tasks?group=%21", "", 422, "invalid", "group", nil},
	{"finished tasks of all topics", "GET", "/v1/tasks?state=finished&group=g", "", 422, "invalid", "topic", nil},
	{"id prefix in another alphabet", "GET", "/v1/tasks?id_prefix=%21", "", 422, "invalid", "id_prefix", nil},
	{"part of an error above 256 bytes", "GET", "/v1/groups/g?error=" + strings.Repeat("%C3%BC", 129), "", 422, "invalid", "error", nil},
	{"due_from is no time", "GET", "/v1/tasks?due_from=Zx81secret", "", 422, "invalid", "due_from", nil},
	{"due_from without a zone", "GET", "/v1/groups/g?due_from=2031-01-01T00:00:00", "", 422, "invalid", "due_from", nil},
	{"due_to with a comma", "GET", "/v1/tasks?due_to=2031-01-01T00:00:00,5Z", "", 422, "invalid", "due_to", nil},
	{"due_to in year 1", "GET", "/v1/tasks?due_to=0001-01-01T00:00:00Z", "", 422, "invalid", "due_to", nil},
	{"due_to before due_from", "GET", "/v1/tasks?due_from=2031-01-01T00:00:00Z&due_to=2030-01-01T00:00:00Z", "", 422, "invalid", "due_to", nil},
	{"due_from of the dead", "GET", "/v1/tasks?topic=t&state=dead&due_from=2031-01-01T00:00:00Z", "", 422, "invalid", "due_from", nil},
	{"died_from of others", "GET", "/v1/tasks?died_from=2031-01-01T00:00:00Z", "", 422, "invalid", "died_from", nil},
	{"reason of others", "GET", "/v1/tasks?reason=buried", "", 422, "invalid", "reason", nil},
	{"unknown reason", "GET", "/v1/topics/t/dead?reason=Zx81secret", "", 422, "invalid", "reason", nil},
	{"died_to is no time", "GET", "/v1/topics/t/dead?died_to=Zx81secret", "", 422, "invalid", "died_to", nil},
	{"broken cursor", "GET", "/v1/tasks?cursor=Zx81secret", "", 422, "invalid", "cursor", nil},
	{"topic of a list in another alphabet", "GET", "/v1/tasks?topic=%21", "", 422, "invalid", "topic", nil},

	// The other bodies.
	{"put: id in another alphabet", "PUT", "/v1/tasks/-a", `{"topic":"t"}`, 422, "invalid", "id", nil},
	{"batch: no array", "POST", "/v1/tasks/batch", `{"topic":"t"}`, 422, "invalid", "body", nil},
	{"batch: cut off", "POST", "/v1/tasks/batch", `[{"topic":"t"},`, 400, "malformed", "", nil},
	{"batch: garbage after the end", "POST", "/v1/tasks/batch", `[{"topic":"t"}] x`, 400, "malformed", "", nil},
	{"batch: no comma", "POST", "/v1/tasks/batch", `[{"topic":"t"} {"topic":"t"}]`, 400, "malformed", "", nil},
	{"batch: 10,001 tasks", "POST", "/v1/tasks/batch", "[" + strings.Repeat(`{"topic":"t"},`, tasks.MaxBatch) + `{"topic":"t"}]`, 422, "invalid", "body", nil},
	{"lines: two values on one", "POST", "/v1/tasks/batch", "{\"topic\":\"t\"}{\"topic\":\"t\"}\n", 400, "malformed", "", []string{"Content-Type: application/x-ndjson"}},
	{"lines: the last is cut off", "POST", "/v1/tasks/batch", "{\"topic\":\"t\"}\n{\"topic\":", 400, "malformed", "", []string{"Content-Type: application/x-ndjson"}},
	{"reserve: max of 0", "POST", "/v1/topics/t/reserve", `{"max":0}`, 422, "invalid", "max", nil},
	{"reserve: max of 1001", "POST", "/v1/topics/t/reserve", `{"max":1001}`, 422, "invalid", "max", nil},
	{"reserve: max with a fraction", "POST", "/v1/topics/t/reserve", `{"max":1.5}`, 422, "invalid", "max", nil},
	{"reserve: wait of 61s", "POST", "/v1/topics/t/reserve", `{"wait":"61s"}`, 422, "invalid", "wait", nil},
	{"reserve: lease of 1ms", "POST", "/v1/topics/t/reserve", `{"lease":1}`, 422, "invalid", "lease", nil},
	{"reserve: topic in another alphabet", "POST", "/v1/topics/%21/reserve", `{}`, 422, "invalid", "topic", nil},
	{"ack: no receipts", "POST", "/v1/receipts/ack", `{}`, 422, "invalid", "receipts", nil},
	{"ack: empty receipts", "POST", "/v1/receipts/ack", `{"receipts":[]}`, 422, "invalid", "receipts", nil},
	{"ack: receipt of another type", "POST", "/v1/receipts/ack", `{"receipts":["a",1]}`, 422, "invalid", "receipts.1", nil},
	{"ack: 1001 receipts", "POST", "/v1/receipts/ack", `{"receipts":["a"` + strings.Repeat(`,"a"`, 1000) + `]}`, 422, "invalid", "receipts", nil},
	{"ack: a field of release", "POST", "/v1/receipts/ack", `{"receipts":["a"],"delay":"1s"}`, 422, "invalid", "delay", nil},
	{"return: a field of release", "POST", "/v1/receipts/return", `{"receipts":["a"],"delay":"1s"}`, 422, "invalid", "delay", nil},
	{"return: no receipts", "POST", "/v1/receipts/return", `{"receipts":[]}`, 422, "invalid", "receipts", nil},
	{"release: negative delay", "POST", "/v1/receipts/release", `{"receipts":["a"],"delay":"-1s"}`, 422, "invalid", "delay", nil},
	{"extend: lease above a day", "POST", "/v1/receipts/extend", `{"receipts":["a"],"lease":"25h"}`, 422, "invalid", "lease", nil},
	{"bury: reason of another type", "POST", "/v1/receipts/bury", `{"receipts":["a"],"reason":1}`, 422, "invalid", "reason", nil},
	{"topic: unknown kind", "PUT", "/v1/topics/t", `{"delivery":{"kind":"Zx81secret"}}`, 422, "invalid", "delivery.kind", nil},
	{"topic: a handler that is none", "PUT", "/v1/topics/t", `{"delivery":{"kind":"handler"}}`, 422, "invalid", "delivery.kind", nil},
	{"topic: unknown field within", "PUT", "/v1/topics/t", `{"retry":{"max_tries":1}}`, 422, "invalid", "retry.max_tries", nil},
	{"topic: too many attempts", "PUT", "/v1/topics/t", `{"retry":{"max_attempts":1000001}}`, 422, "invalid", "retry.max_attempts", nil},
	{"topic: maximum below minimum", "PUT", "/v1/topics/t", `{"retry":{"min_backoff":"1h","max_backoff":"1m"}}`, 422, "invalid", "retry.max_backoff", nil},
	{"topic: fields for no way", "PUT", "/v1/topics/t", `{"delivery":{"kind":"pull","url":"http://127.0.0.1/"}}`, 422, "invalid", "delivery", nil},
	{"topic: a kind given twice", "PUT", "/v1/topics/t", `{"delivery":{"kind":"pull","kind":"pull"}}`, 422, "invalid", "delivery.kind", nil},
	{"topic: a rate of nothing", "PUT", "/v1/topics/t", `{"rate":{"burst":5}}`, 422, "invalid", "rate.per_second", nil},
	{"topic: a rate too slow", "PUT", "/v1/topics/t", `{"rate":{"per_second":0.0001}}`, 422, "invalid", "rate.per_second", nil},
	{"topic: a burst of none", "PUT", "/v1/topics/t", `{"rate":{"per_second":1,"burst":0}}`, 422, "invalid", "rate.burst", nil},
	{"topic: no weight", "PUT", "/v1/topics/t", `{"weight":0}`, 422, "invalid", "weight", nil},
	{"topic: spread over days", "PUT", "/v1/topics/t", `{"spread":"25h"}`, 422, "invalid", "spread", nil},
	{"topic: unknown misfire", "PUT", "/v1/topics/t", `{"misfire":"Zx81secret"}`, 422, "invalid", "misfire", nil},
	{"topic: empty misfire", "PUT", "/v1/topics/t", `{"misfire":""}`, 422, "invalid", "misfire", nil},
	{"topic: dead forgotten at once", "PUT", "/v1/topics/t", `{"dead_retention":"1s"}`, 422, "invalid", "dead_retention", nil},
	{"topic: finished kept for too long", "PUT", "/v1/topics/t", `{"keep_finished":"31d"}`, 422, "invalid", "keep_finished", nil},
	{"topic: object of another type", "PUT", "/v1/topics/t", `{"delivery":"pull"}`, 422, "invalid", "delivery", nil},
	{"topic: paused of another type", "PUT", "/v1/topics/t", `{"paused":1}`, 422, "invalid", "paused", nil},
	{"topic: broken If-Match", "PUT", "/v1/topics/t", `{}`, 422, "invalid", "If-Match", []string{"If-Match: Zx81secret"}},
	{"dead: neither ids nor all", "POST", "/v1/topics/t/dead/requeue", `{}`, 422, "invalid", "ids", nil},
	{"dead: two deadlines", "POST", "/v1/topics/t/dead/requeue", `{"all":true,"delay":"1h","due_at":"2030-01-31T12:00:00Z"}`, 422, "invalid", "due_at", nil},
	{"dead: too far ahead", "POST", "/v1/topics/t/dead/requeue", `{"ids":["a"],"delay":"3661d"}`, 422, "invalid", "delay", nil},
	{"dead: deadline of a deletion", "DELETE", "/v1/topics/t/dead", `{"all":true,"delay":"1h"}`, 422, "invalid", "delay", nil},
	{"dead: both ids and all", "DELETE", "/v1/topics/t/dead", `{"ids":["a"],"all":true}`, 422, "invalid", "ids", nil},
	{"dead: not all", "DELETE", "/v1/topics/t/dead", `{"all":false}`, 422, "invalid", "all", nil},
	{"dead: no ids", "DELETE", "/v1/topics/t/dead", `{"ids":[]}`, 422, "invalid", "ids", nil},
}

func manyFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"x%d":"1"`, i)
	}
	return "{" + b.String()[1:] + "}"
}

func TestBadInputIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range badInput {
		t.Run(c.name, func(t *testing.T) {
			sub := *r
			sub.TB = t
			a := sub.do(c.method, c.path, c.body, c.headers...)
			sub.refused(a, c.status, c.kind, c.field)
			if bytes.Contains(a.body, []byte(canary)) {
				t.Errorf("the answer repeats a value: %s", a.body)
			}
			sub.empty()
		})
	}
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h"}`), 201) // and the server goes on
}

// All faults of a request are named at once.
func TestAllFaultsAreNamed(t *testing.T) {
	r := newRig(t)
	a := r.do("POST", "/v1/tasks", `{"id":1,"topic":[],"delay":"x","group":null,"what":{"a":[1,{"b":2}]}}`)
	for _, field := range []string{"id", "topic", "delay", "group", "what"} {
		r.refused(a, 422, "invalid", field)
	}
}

func TestNamesOfUnknownFieldsAreCut(t *testing.T) {
	r := newRig(t)
	a := r.do("POST", "/v1/tasks", `{"`+strings.Repeat("é", 5000)+`":1}`)
	r.refused(a, 422, "invalid", strings.Repeat("é", 32)+"...")
	if len(a.body) > 1000 {
		t.Errorf("the answer has %d bytes", len(a.body))
	}
}

func TestAllowAndOptions(t *testing.T) {
	r := newRig(t)
	a := r.do("PUT", "/v1/tasks", "")
	r.refused(a, 405, "method_not_allowed", "")
	for _, a := range []answer{a, r.do("OPTIONS", "/v1/tasks", "")} {
		for _, m := range []string{"GET", "HEAD", "POST", "OPTIONS"} {
			if !strings.Contains(a.header.Get("Allow"), m) {
				t.Errorf("Allow is %q", a.header.Get("Allow"))
			}
		}
	}
	if a := r.do("OPTIONS", "/v1/tasks", ""); a.status != 204 {
		t.Errorf("OPTIONS is answered %d", a.status)
	}
	r.refused(r.do("OPTIONS", "/v2", ""), 404, "no_such_route", "")
}

func TestHead(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h"}`), 201)
	if a := r.do("HEAD", "/v1/tasks/a", ""); a.status != 200 || len(a.body) > 0 || a.header.Get("Content-Type") != mediaJSON {
		t.Errorf("HEAD is answered %d %v %q", a.status, a.header, a.body)
	}
	if a := r.do("HEAD", "/v1/tasks/b", ""); a.status != 404 {
		t.Errorf("HEAD of an unknown task is answered %d", a.status)
	}
}

func TestAccept(t *testing.T) {
	r := newRig(t)
	for _, accept := range []string{"*/*", "application/json", "text/html, */*;q=0.1", "application/*", "application/problem+json", "APPLICATION/JSON; charset=utf-8"} {
		if a := r.do("GET", "/v1/topics", "", "Accept: "+accept); a.status != 200 {
			t.Errorf("Accept: %s is answered %d", accept, a.status)
		}
	}
}

func TestContentTypeWithParameters(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h"}`, "Content-Type: Application/JSON; Charset=UTF-8"), 201)
}

// The bound of the door holds beside that of the scheduler.
func TestPayloadsOfTheDoor(t *testing.T) {
	r := newRigWith(t, tasks.Config{MaxPayload: 1 << 20}, Config{MaxPayload: 1000})
	small, large := `"`+strings.Repeat("p", 998)+`"`, `"`+strings.Repeat("p", 999)+`"`
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h","payload":`+small+`}`), 201)
	r.refused(r.do("POST", "/v1/tasks", `{"topic":"t","payload":`+large+`}`), 413, "too_large", "")
	r.refused(r.do("PUT", "/v1/tasks/a", `{"topic":"t","payload":`+large+`}`), 413, "too_large", "")
	r.refused(r.do("PATCH", "/v1/tasks/a", `{"payload":`+large+`}`), 413, "too_large", "")
	v := r.want(r.do("POST", "/v1/tasks/batch", `[{"topic":"t","delay":"1h","payload":`+small+`},{"topic":"t","payload":`+large+`},{"topic":"t","delay":"1h"}]`), 200)
	if failed := v["errors"].([]any); v["accepted"] != 2.0 || len(failed) != 1 || failed[0].(map[string]any)["index"] != 1.0 {
		t.Errorf("of a batch with one that is too large: %v", v)
	}
	// What another door has let in can be moved, and exported and imported.
	if _, err := r.scheduler.Schedule(t.Context(), tasks.Request{ID: "b", Topic: "t", Delay: time.Hour, Payload: []byte(large)}); err != nil {
		t.Fatal(err)
	}
	r.want(r.do("PATCH", "/v1/tasks/b", `{"delay":"2h"}`), 200)
}

// A body without a length is read to its end, and bounded all the same.
func TestChunkedBodies(t *testing.T) {
	r := newRigWith(t, tasks.Config{}, Config{MaxBody: 2048})
	send := func(body string) answer {
		q, err := http.NewRequestWithContext(t.Context(), "POST", r.url+"/v1/tasks", io.MultiReader(strings.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		return r.send(q)
	}
	r.want(send(`{"topic":"t","delay":"1h","payload":"`+strings.Repeat("p", 1900)+`"}`), 201)
	r.refused(send(`{"topic":"t","delay":"1h","payload":"`+strings.Repeat("p", 2100)+`"}`), 413, "too_large", "")
	if used, _ := r.api.bodies.Used(); used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
}

// Bodies that are each within the limit do not add up without end.
func TestBodiesAreBoundedTogether(t *testing.T) {
	r := newRigWith(t, tasks.Config{}, Config{MaxBody: 2048})
	if !r.api.bodies.For(edge.Anyone).Take(bodiesAhead*2048 - 100) {
		t.Fatal("the budget is smaller than it says")
	}
	a := r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h","payload":"`+strings.Repeat("p", 200)+`"}`)
	r.refused(a, 429, "overloaded", "")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
	}
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h"}`), 201)
}

// What callers send who have not said who they are takes no room from those who have, nor they from
// the others.
func TestBodiesOfStrangers(t *testing.T) {
	r := guarded(t, Config{MaxBody: 2048})
	logIn := func() answer { return r.do("POST", sessionPath, `{"token":"secret-read"}`) }
	known := r.api.bodies.For(edge.Anyone)
	if !known.Take(bodiesAhead * 2048) {
		t.Fatal("the budget is smaller than it says")
	}
	r.want(logIn(), 200)
	r.refused(r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h"}`, bearer("schedule")), 429, "overloaded", "")
	known.Free()
	if !r.api.bodies.For(nil).Take(2048) {
		t.Fatal("the part of strangers is smaller than a body")
	}
	r.refused(logIn(), 429, "overloaded", "")
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h"}`, bearer("schedule")), 201)
}

// A slash in a name does not lead to another route: invalid input changes nothing.
func TestSlashesInNames(t *testing.T) {
	r := newRig(t)
	r.do("POST", "/v1/tasks", `{"id":"a","topic":"orders","delay":"1h"}`)
	for path, kind := range map[string]string{
		"/v1/topics/orders%2Ftasks": "topic_not_found", "/v1/topics/orders%2ftasks": "topic_not_found", "/v1/tasks/..%2Ftopics%2Forders%2Ftasks": "not_found",
	} {
		r.refused(r.do("DELETE", path, ""), 404, kind, "")
	}
	r.refused(r.do("DELETE", "/v1/topics/orders%2Ftasks/tasks", ""), 422, "invalid", "topic")
	r.refused(r.do("POST", "/v1/tasks/a%2Ffire", ""), 405, "method_not_allowed", "")
	if n := r.scheduler.Stats().Total.Pending; n != 1 {
		t.Errorf("%d tasks are pending, want 1", n)
	}
	if a := r.do("GET", "/v1/tasks/%61", ""); a.status != 200 {
		t.Errorf("an escaped letter is answered %d", a.status)
	}
}

// Each Content-Encoding counts, as if they stood in one header.
func TestRefusesEachContentEncoding(t *testing.T) {
	r := newRig(t)
	q, err := http.NewRequestWithContext(t.Context(), "POST", r.url+"/v1/tasks", strings.NewReader(`{"topic":"t"}`))
	if err != nil {
		t.Fatal(err)
	}
	q.Header = http.Header{"Content-Type": {mediaJSON}, "Content-Encoding": {"identity", "gzip"}}
	r.refused(r.send(q), 415, "unsupported_media_type", "")
}
