package otlp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// settings are what the environment says. The specification of OpenTelemetry has the meaning of the
// variables, and their defaults.
type settings struct {
	endpoint *url.URL
	headers  http.Header
	timeout  time.Duration // for a batch, with all its attempts
	gzip     bool
	tls      *tls.Config
	queue    int
	sampler  sdk.Sampler
	samples  string // by which sampler, as the variables name it

	delay time.Duration // after which a batch is sent that is not full
	batch int           // spans, at most queue
}

// Bounds of what waits for the collector, and of what goes there at once, in spans.
const (
	maxQueue = 1_000_000
	maxBatch = 1 << 16
)

// An environment looks variables up, and collects what is wrong with them.
type environment struct {
	getenv func(string) string
	bad    *multierror.Error
}

func (e *environment) get(name string) string { return strings.TrimSpace(e.getenv(name)) }

// of returns a variable of the exporter, and its name: that for traces comes before that for all.
func (e *environment) of(name string) (value, variable string) {
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_TRACES_" + name, "OTEL_EXPORTER_OTLP_" + name} {
		if value := e.get(variable); value != "" {
			return value, variable
		}
	}
	return "", ""
}

func (e *environment) fault(variable, problem string) {
	e.bad = multierror.Append(e.bad, fmt.Errorf("%s: %s", variable, problem))
	e.bad.ErrorFormat = inOneLine
}

// inOneLine is for the log.
func inOneLine(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// milliseconds reads a variable that is a span of time.
func (e *environment) milliseconds(value, variable string, def time.Duration) time.Duration {
	if value == "" {
		return def
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > 3_600_000 {
		e.fault(variable, "must be milliseconds, from 1 to 3600000")
	}
	return time.Duration(n) * time.Millisecond
}

// count reads a variable that is a number of spans, from 1 to a bound.
func (e *environment) count(variable string, def, bound int) int {
	value := e.get(variable)
	if value == "" {
		return def
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > bound {
		e.fault(variable, fmt.Sprintf("must be from 1 to %d", bound))
	}
	return n
}

// read returns nil if the environment asks for no traces. Its error names all variables that are
// wrong.
func (e *environment) read() (*settings, error) {
	exporter := e.get("OTEL_TRACES_EXPORTER")
	endpoint, _ := e.of("ENDPOINT")
	if strings.EqualFold(e.get("OTEL_SDK_DISABLED"), "true") || exporter == "none" || exporter == "" && endpoint == "" {
		return nil, nil
	}
	if exporter != "" && exporter != "otlp" {
		e.fault("OTEL_TRACES_EXPORTER", "must be otlp or none")
	}
	if protocol, variable := e.of("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		e.fault(variable, "must be http/protobuf")
	}
	s := &settings{endpoint: e.endpoint(), headers: e.headers(), tls: e.tls()}
	s.sampler, s.samples = e.sampler()
	value, variable := e.of("TIMEOUT")
	s.timeout = e.milliseconds(value, variable, 10*time.Second)
	switch compression, variable := e.of("COMPRESSION"); compression {
	case "", "none":
	case "gzip":
		s.gzip = true
	default:
		e.fault(variable, "must be gzip or none")
	}
	// The SDK does not look up what is set here: some numbers make it panic or spin.
	s.queue = e.count("OTEL_BSP_MAX_QUEUE_SIZE", sdk.DefaultMaxQueueSize, maxQueue)
	s.batch = min(e.count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", sdk.DefaultMaxExportBatchSize, maxBatch), s.queue)
	s.delay = e.milliseconds(e.get("OTEL_BSP_SCHEDULE_DELAY"), "OTEL_BSP_SCHEDULE_DELAY", sdk.DefaultScheduleDelay*time.Millisecond)
	return s, e.bad.ErrorOrNil()
}

// endpoint returns where spans go. To a URL that is for all signals it adds the path of traces.
func (e *environment) endpoint() *url.URL {
	value, variable := e.of("ENDPOINT")
	if value == "" {
		value, variable = "http://localhost:4318", "OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		e.fault(variable, "must be a URL of http or https")
		return nil
	}
	if variable == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		u = u.JoinPath("v1", "traces")
	}
	return u
}

// headers returns the headers of each request. Their values may be secret, and stand in no error.
func (e *environment) headers() http.Header {
	h := make(http.Header)
	list, variable := e.of("HEADERS")
	for pair := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		plain, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || name == "" || err != nil {
			e.fault(variable, "must be a list of name=value, with commas between")
			return nil
		}
		h.Set(name, plain)
	}
	return h
}

// tls returns nil if no certificates are set.
func (e *environment) tls() *tls.Config {
	authorities, fromCA := e.of("CERTIFICATE")
	certificate, fromCertificate := e.of("CLIENT_CERTIFICATE")
	key, _ := e.of("CLIENT_KEY")
	if authorities == "" && certificate == "" && key == "" {
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if authorities != "" {
		text, err := os.ReadFile(authorities)
		if c.RootCAs = x509.NewCertPool(); err == nil && !c.RootCAs.AppendCertsFromPEM(text) {
			err = errors.New("has no certificates (PEM)")
		}
		if err != nil {
			e.fault(fromCA, err.Error())
		}
	}
	if certificate != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			e.fault(fromCertificate, "with CLIENT_KEY: "+err.Error())
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}
