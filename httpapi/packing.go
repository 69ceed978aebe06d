package httpapi

import (
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
)

const (
	// minPacked is from how many bytes on an answer is packed: less costs more than it saves.
	minPacked = 2 << 10
	// packedAtOnce bounds how many requests have answers packed at the same time, with some 300 kB
	// of memory each. Others are answered as they are.
	packedAtOnce = 16
)

// packing packs the answers of requests that read, for callers that accept gzip: a page asks for
// the same figures again and again.
type packing struct {
	turns   chan struct{}
	wrap    func(http.Handler) http.HandlerFunc
	handler http.HandlerFunc
}

// A packingWriter is the writer of an answer that is packed if it gets a turn once it is large
// enough: what is small, or still waits, takes none.
type packingWriter struct {
	http.ResponseWriter
	turns   chan struct{}
	size    int
	decided bool
	has     bool // a turn
}

// Unwrap is for http.ResponseController.
func (p *packingWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *packingWriter) Write(b []byte) (int, error) {
	if p.size += len(b); p.size >= minPacked && !p.decided {
		p.decided = true
		select {
		case p.turns <- struct{}{}:
			p.has = true
		default:
			p.Header().Set(gzhttp.HeaderNoCompression, "1") // gzhttp does not pass it on
		}
	}
	return p.ResponseWriter.Write(b)
}

func (p *packingWriter) end() {
	if p.has {
		<-p.turns
	}
}

func newPacking(handler http.HandlerFunc) packing {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(minPacked), gzhttp.CompressionLevel(gzip.BestSpeed),
		gzhttp.ContentTypes([]string{mediaJSON}), gzhttp.EnableZstd(false))
	if err != nil {
		panic(err) // the options are constants
	}
	return packing{make(chan struct{}, packedAtOnce), wrap, handler}
}

// serve answers a request, unless its answer is not to be packed: then it returns false.
func (p *packing) serve(w http.ResponseWriter, r *http.Request) bool {
	if !mayPack(r) {
		return false
	}
	a := packingWriter{turns: p.turns}
	defer a.end() // once all is written
	p.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.ResponseWriter = w
		p.handler(&a, r)
	}))(w, r)
	return true
}

// mayPack reports whether the answer to a request may be packed. Streams are not, nor is what has
// the secret of a session.
func mayPack(r *http.Request) bool {
	if r.Method != http.MethodGet || !acceptsGzip(r.Header.Get("Accept-Encoding")) || !strings.Contains(r.URL.Path, "/v1/") {
		return false
	}
	for _, path := range []string{eventsPath, sessionPath, "/v1/export"} {
		if strings.HasSuffix(r.URL.Path, path) {
			return false
		}
	}
	return true
}
