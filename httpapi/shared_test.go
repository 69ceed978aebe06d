package httpapi

import (
	"errors"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
)

const (
	mayBeOld = "Cache-Control: no-transform, max-age=60"
	unpacked = "Accept-Encoding: identity"
)

// older makes all shared answers older.
func (r *rig) older(by time.Duration) {
	r.api.shared.mu.Lock()
	defer r.api.shared.mu.Unlock()
	for _, a := range r.api.shared.of {
		a.begun = a.begun.Add(-by)
	}
}

// Callers that accept it share figures that are at most sharedFor old. Others get them anew.
func TestFiguresAreShared(t *testing.T) {
	r := newRig(t)
	pending := func(want int, headers ...string) {
		t.Helper()
		a := r.do("GET", "/v1/stats", "", headers...)
		if is := r.want(a, 200)["total"].(map[string]any)["pending"]; is != float64(want) || a.header.Get("Content-Type") != mediaJSON {
			t.Errorf("%v are pending, want %d; %v", is, want, a.header)
		}
	}
	pending(0, mayBeOld, unpacked)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h"}`), 201)
	pending(0, mayBeOld, unpacked)
	pending(1, unpacked)
	pending(1, "Cache-Control: no-cache", unpacked)
	pending(1, "Cache-Control: max-age=0", unpacked)
	r.older(sharedFor)
	pending(1, mayBeOld, unpacked)
	packed := r.do("GET", "/v1/stats", "", mayBeOld, "Accept-Encoding: gzip")
	again := r.do("GET", "/v1/stats", "", mayBeOld, "Accept-Encoding: gzip")
	if packed.header.Get("Content-Encoding") != "gzip" || again.header.Get("Content-Encoding") != "gzip" || string(packed.body) != string(again.body) || again.header.Get("Age") != "0" {
		t.Errorf("packed they are %v, then %v", packed.header, again.header)
	}
}

// What is shared is what one token may see, as long as it may.
func TestSharedFiguresAreOfOneToken(t *testing.T) {
	r := limitedRig(t)
	for range 2 {
		for name, want := range map[string]int{"admin": 2, "own": 1} {
			page := r.want(r.do("GET", "/v1/topics", "", bearer(name), mayBeOld), 200)
			if topics := page["topics"].([]any); len(topics) != want {
				t.Errorf("%s sees %d topics, want %d", name, len(topics), want)
			}
		}
	}
	if err := r.api.callers.Set([]edge.Token{tokenOf("admin", edge.ScopeAdmin)}); err != nil {
		t.Fatal(err)
	}
	r.want(r.do("GET", "/v1/topics", "", bearer("own"), mayBeOld), 401)
}

// An answer that fails is not shared. No caller waits for one that is made no more.
func TestFailuresAreNotShared(t *testing.T) {
	r := newRig(t)
	for range 2 {
		r.want(r.do("GET", "/v1/forecast?window=1ns", "", mayBeOld), 422)
	}
	if n := len(r.api.shared.of); n != 0 {
		t.Errorf("%d are kept", n)
	}
	c, _ := gin.CreateTestContext(nil)
	key := sharedKey{path: "/v1/stats"}
	a, mine := r.api.shared.find(key, sharedFor)
	func() {
		defer func() { _ = recover() }()
		r.api.makeShared(c, key, a, func() { panic(errors.New("broken")) })
	}()
	if again, mineToo := r.api.shared.find(key, sharedFor); !mine || !mineToo || again == a || !a.isDone() {
		t.Error("an answer whose making has failed is waited for")
	}
}

// However many different answers are asked for, few are kept.
func TestSharedAnswersAreBounded(t *testing.T) {
	var s sharing
	for i := range sharedAtMost {
		key := sharedKey{path: string(rune('a' + i))}
		if a, mine := s.find(key, sharedFor); !mine || a == nil {
			t.Fatalf("answer %d has no room", i)
		} else if i > 0 { // the first one is being made
			a.body = []byte("{}")
			s.end(key, a)
		}
	}
	if a, _ := s.find(sharedKey{path: "more"}, sharedFor); a != nil {
		t.Error("there is room for more")
	}
	for _, a := range s.of {
		a.begun = a.begun.Add(-sharedFor)
	}
	if a, mine := s.find(sharedKey{path: "more"}, sharedFor); a == nil || !mine || len(s.of) != 2 {
		t.Errorf("%d are kept though they are old", len(s.of))
	}
}
