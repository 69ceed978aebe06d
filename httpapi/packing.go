package httpapi

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

const (
	// minPacked is from how many bytes on an answer is packed: less costs more than it saves.
	minPacked = 2 << 10
	// packedAtOnce bounds how many answers are packed while they are written, with some 300 kB of
	// memory each. Others are answered as they are. One caller may have all turns: who it is is not
	// known yet where an answer is packed.
	packedAtOnce = 16
)

// packing packs the answers of requests that read, for callers that accept gzip: a page asks for
// the same figures again and again. What is small, or still waits, takes no turn.
type packing struct {
	turns   chan struct{} // of answers that are written; their readers may be slow
	inside  chan struct{} // of those that are packed in memory, one for each processor
	packers sync.Pool     // of *gzip.Writer
	handler http.HandlerFunc
}

func newPacking(handler http.HandlerFunc) *packing {
	return &packing{
		turns:   make(chan struct{}, packedAtOnce),
		inside:  make(chan struct{}, runtime.GOMAXPROCS(0)),
		handler: handler,
	}
}

// begin takes a turn to pack what is written to the packer, for to; nil: there is none.
func (p *packing) begin(to io.Writer) *gzip.Writer {
	select {
	case p.turns <- struct{}{}:
	default:
		return nil
	}
	return p.packer(to)
}

// packer returns what packs for to.
func (p *packing) packer(to io.Writer) *gzip.Writer {
	z, known := p.packers.Get().(*gzip.Writer)
	if !known {
		z, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is a valid one
	}
	z.Reset(to)
	return z
}

// end gives a turn back.
func (p *packing) end(z *gzip.Writer) {
	p.keep(z)
	<-p.turns
}

func (p *packing) keep(z *gzip.Writer) {
	z.Reset(nil)
	p.packers.Put(z)
}

// squeeze returns a text packed. It may wait for its turn, but for no reader.
func (p *packing) squeeze(text []byte) []byte {
	p.inside <- struct{}{}
	defer func() { <-p.inside }()
	var to bytes.Buffer
	z := p.packer(&to)
	defer p.keep(z)
	_, _ = z.Write(text) // a Buffer takes everything
	_ = z.Close()
	return slices.Clip(to.Bytes())
}

// serve answers a request, unless its answer is not to be packed: then it returns false.
func (p *packing) serve(w http.ResponseWriter, r *http.Request) bool {
	if !mayPack(r) {
		return false
	}
	w.Header().Add("Vary", "Accept-Encoding")
	if !acceptsGzip(r.Header.Get("Accept-Encoding")) {
		return false
	}
	a := packingWriter{ResponseWriter: w, packing: p}
	defer a.leave()
	p.handler(&a, r)
	a.finish() // not after a panic: what is missing must not look whole
	return true
}

// mayPack reports whether the answer to a request may be packed. Streams are not, nor is what has
// the secret of a session.
func mayPack(r *http.Request) bool {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/v1/") {
		return false
	}
	for _, path := range []string{eventsPath, sessionPath, "/v1/export"} {
		if strings.HasSuffix(r.URL.Path, path) {
			return false
		}
	}
	return true
}

// A packingWriter is the writer of an answer that is packed if it is JSON and has a turn once it is
// large enough. Until then it is kept back.
type packingWriter struct {
	http.ResponseWriter
	packing *packing
	status  int // 0: not known yet
	kept    []byte
	begun   bool         // nothing is kept back any more
	packs   *gzip.Writer // nil: the answer goes as it is
}

// Unwrap is for http.ResponseController.
func (a *packingWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *packingWriter) WriteHeader(status int) { a.status = cmp.Or(a.status, status) }

func (a *packingWriter) Write(b []byte) (int, error) {
	if !a.begun && len(a.kept)+len(b) < minPacked {
		a.kept = append(a.kept, b...)
		return len(b), nil
	}
	if err := a.begin(true); err != nil {
		return 0, err
	}
	if a.packs != nil {
		return a.packs.Write(b)
	}
	return a.ResponseWriter.Write(b)
}

// begin writes what was kept back, unless that has happened.
func (a *packingWriter) begin(large bool) (err error) {
	if a.begun {
		return nil
	}
	a.begun = true
	h := a.Header()
	if large && h.Get("Content-Type") == mediaJSON && h.Get("Content-Encoding") == "" {
		if a.packs = a.packing.begin(a.ResponseWriter); a.packs != nil {
			h.Set("Content-Encoding", "gzip")
			h.Del("Content-Length")
		}
	}
	if a.status != 0 {
		a.ResponseWriter.WriteHeader(a.status)
	}
	switch {
	case len(a.kept) == 0:
	case a.packs != nil:
		_, err = a.packs.Write(a.kept)
	default:
		_, err = a.ResponseWriter.Write(a.kept)
	}
	a.kept = nil
	return err
}

// finish writes the rest. An error means that the caller has gone.
func (a *packingWriter) finish() {
	_ = a.begin(false)
	if a.packs != nil {
		_ = a.packs.Close()
	}
}

// leave gives the turn back, if there is one.
func (a *packingWriter) leave() {
	if a.packs != nil {
		a.packing.end(a.packs)
	}
}
