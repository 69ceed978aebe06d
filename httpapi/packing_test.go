package httpapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
)

// Large answers of requests that read are packed, for callers that accept it.
func TestAnswersArePacked(t *testing.T) {
	r := newRig(t)
	for i := range 20 {
		r.want(r.do("PUT", fmt.Sprintf("/v1/tasks/a%d", i), `{"topic":"t","delay":"1h"}`), 201)
	}
	const packs = "Accept-Encoding: br, gzip"
	for path, packed := range map[string]bool{
		"/v1/tasks": true, "/v1/tasks?limit=1": false, "/v1/stats": true, "/v1/session": false, "/v1/none": false, "/v1/export": false,
	} {
		a := r.do("GET", path, "", packs)
		if is := a.header.Get("Content-Encoding") == "gzip"; is != packed {
			t.Errorf("%s is packed: %t", path, is)
		}
		if packed {
			z, err := gzip.NewReader(bytes.NewReader(a.body))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(z)
			if err != nil || !json.Valid(text) || 2*len(a.body) > len(text) {
				t.Errorf("%s is %d bytes of %d: %v", path, len(a.body), len(text), err)
			}
			if a.header.Get("Vary") != "Accept-Encoding" || a.header.Get("Content-Type") != mediaJSON {
				t.Errorf("%s has the headers %v", path, a.header)
			}
		}
		if a := r.do("GET", path, "", "Accept-Encoding: gzip;q=0"); a.header.Get("Content-Encoding") != "" {
			t.Errorf("%s is packed for a caller that does not accept it", path)
		}
	}
	if a := r.do("POST", "/v1/tasks/actions", `{"action":"cancel","filter":{"topic":"t"},"dry_run":true}`, packs); a.header.Get("Content-Encoding") != "" {
		t.Error("the answer to a POST is packed")
	}
	for range packedAtOnce { // they are all at work
		r.api.packing.turns <- struct{}{}
	}
	if a := r.do("GET", "/v1/tasks", "", packs); a.status != 200 || a.header.Get("Content-Encoding") != "" {
		t.Errorf("without a turn the answer is %d %v", a.status, a.header)
	}
}

// A turn ends with the answer, also where the handler panics: then the answer does not end as if it
// were whole.
func TestPackingOfAnAnswerThatBreaks(t *testing.T) {
	for _, size := range []int{minPacked / 2, 2 * minPacked} {
		p := newPacking(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaJSON)
			_, _ = w.Write(make([]byte, size))
			panic(http.ErrAbortHandler)
		})
		w := httptest.NewRecorder()
		q := httptest.NewRequest(http.MethodGet, "/v1/tasks", nil)
		q.Header.Set("Accept-Encoding", "gzip")
		func() {
			defer func() { _ = recover() }()
			p.serve(w, q)
		}()
		z, err := gzip.NewReader(w.Body)
		if err == nil {
			_, err = io.ReadAll(z)
		}
		if err == nil || len(p.turns) != 0 {
			t.Errorf("after %d bytes: %v, and %d turns are left", size, err, len(p.turns))
		}
	}
}

// An answer has a turn from when it is large enough until it is written, and not while it waits.
func TestPackingTakesATurnToWrite(t *testing.T) {
	var p *packing
	p = newPacking(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaJSON)
		for i, want := range []int{0, 0, 1, 1} {
			if got := len(p.turns); got != want {
				t.Errorf("before piece %d it has %d turns", i, got)
			}
			if _, err := w.Write(make([]byte, minPacked*2/3)); err != nil {
				t.Error(err)
			}
		}
	})
	q := httptest.NewRequest(http.MethodGet, "/v1/tasks", nil)
	q.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	if !p.serve(w, q) || w.Header().Get("Content-Encoding") != "gzip" || len(p.turns) > 0 {
		t.Errorf("answered %v, and %d turns are left", w.Header(), len(p.turns))
	}
}

// However many slow readers have the turns, what is shared is packed, as many at once as there are
// processors.
func TestSharedAnswersArePackedBesideSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := newServer(Config{})
		if err != nil {
			t.Fatal(err)
		}
		for range packedAtOnce {
			s.packing.turns <- struct{}{}
		}
		for range cap(s.packing.inside) {
			s.packing.inside <- struct{}{}
		}
		packed := make(chan madeAnswer, 1)
		go func() { packed <- s.packShared(make([]byte, mostKept+1), true) }()
		synctest.Wait()
		if len(packed) != 0 {
			t.Error("it does not wait for its turn")
		}
		<-s.packing.inside
		synctest.Wait()
		if made := <-packed; !made.packed || len(made.body) == 0 {
			t.Errorf("it is packed: %t, to %d bytes", made.packed, len(made.body))
		}
		if n := len(s.packing.inside); n != cap(s.packing.inside)-1 {
			t.Errorf("%d turns are left", n)
		}
	})
}
