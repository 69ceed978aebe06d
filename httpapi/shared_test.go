package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
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
}

// A sharer is a server whose answers a test makes, in a bubble.
type sharer struct {
	*testing.T
	*Server
	callers *edge.Callers
	made    int // how many answers were made
}

func shareBubble(t *testing.T, test func(*sharer)) {
	synctest.Test(t, func(t *testing.T) {
		s := &sharer{T: t, callers: callersOf(tokenOf("a", edge.ScopeRead), tokenOf("b", edge.ScopeRead))}
		var err error
		if s.Server, err = newServer(Config{Callers: s.callers}); err != nil {
			t.Fatal(err)
		}
		test(s)
	})
}

// ask makes a request that is answered by answer if it is not by what another one was answered, and
// returns the channel of its answer: "503" where it has failed.
func (s *sharer) ask(ctx context.Context, token string, age int, to http.ResponseWriter, answer func(*gin.Context)) chan string {
	answered := make(chan string, 1)
	go func() {
		w := httptest.NewRecorder()
		c, _ := gin.CreateTestContext(&answerWriter{ResponseWriter: cmp.Or(to, http.ResponseWriter(w)), server: s.Server})
		c.Request = httptest.NewRequest("GET", "/v1/stats", nil).WithContext(ctx)
		c.Request.Header.Set("Cache-Control", fmt.Sprint("max-age=", age))
		c.Set(callerKey, s.callers.Find(tokenOf(token).SHA256))
		defer func() {
			if recover() != nil {
				answered <- "panic"
			}
		}()
		s.share(humagin.NewContext(&huma.Operation{}, c), func(huma.Context) { s.made++; answer(c) })
		answered <- strings.TrimSpace(fmt.Sprint(w.Code, " ", w.Body, " ", w.Header().Get("Age")))
	}()
	synctest.Wait()
	return answered
}

// saying answers with a text once a channel is closed.
func saying(text string, after <-chan struct{}) func(*gin.Context) {
	return func(c *gin.Context) {
		<-after
		if c.Request.Context().Err() != nil {
			c.Status(http.StatusServiceUnavailable)
			return
		}
		_, _ = c.Writer.WriteString(text)
	}
}

// wantAnswer wants what a request was answered, and how many answers were made by then.
func (s *sharer) wantAnswer(answered chan string, want string, made int) {
	s.Helper()
	synctest.Wait()
	if got := <-answered; got != want || s.made != made {
		s.Errorf("it is answered %q, and %d are made; want %q and %d", got, s.made, want, made)
	}
}

// Callers wait for an answer that is being made, if what it tells is young enough for them.
func TestAnswersThatAreMadeAreShared(t *testing.T) {
	shareBubble(t, func(s *sharer) {
		go1, go2, ready := make(chan struct{}), make(chan struct{}), make(chan struct{})
		close(ready)
		first := s.ask(s.Context(), "a", 2, nil, saying("one", go1))
		time.Sleep(time.Second)
		patient, eager := s.ask(s.Context(), "a", 2, nil, nil), s.ask(s.Context(), "a", 1, nil, saying("two", go2))
		other := s.ask(s.Context(), "b", 2, nil, saying("of b", ready))
		s.wantAnswer(other, "200 of b", 3)
		close(go1)
		s.wantAnswer(first, "200 one", 3)
		s.wantAnswer(patient, "200 one 1", 3)
		joins := s.ask(s.Context(), "a", 2, nil, nil) // the newer one
		close(go2)
		s.wantAnswer(eager, "200 two", 3)
		s.wantAnswer(joins, "200 two 0", 3)
	})
}

// One that waits makes the answer if the caller leaves that was to make it. One whose making has
// failed otherwise, each caller makes by itself. No caller waits for what is made no more.
func TestAnswersWhoseMakingEnds(t *testing.T) {
	shareBubble(t, func(s *sharer) {
		ctx, leave := context.WithCancel(s.Context())
		goOn := make(chan struct{})
		first := s.ask(ctx, "a", 2, nil, saying("", goOn))
		second, third := s.ask(s.Context(), "a", 2, nil, saying("whole", goOn)), s.ask(s.Context(), "a", 2, nil, saying("whole", goOn))
		leave()
		close(goOn)
		s.wantAnswer(first, "503", 2)
		want := map[string]bool{"200 whole": true, "200 whole 0": true}
		if a, b := <-second, <-third; !want[a] || !want[b] || a == b || s.made != 2 {
			s.Errorf("they are answered %q and %q, and %d are made", a, b, s.made)
		}
		time.Sleep(sharedFor)
		breaks := make(chan struct{})
		first = s.ask(s.Context(), "a", 2, nil, func(*gin.Context) { <-breaks; panic("broken") })
		second = s.ask(s.Context(), "a", 2, nil, saying("mended", breaks))
		close(breaks)
		s.wantAnswer(first, "panic", 4)
		s.wantAnswer(second, "200 mended", 4)
		if len(s.shared.of) != 0 {
			s.Errorf("%d are kept", len(s.shared.of))
		}
	})
}

// A stuck writer is that of a caller that does not read.
type stuck struct {
	*httptest.ResponseRecorder
	until chan struct{}
}

func (w *stuck) Write(p []byte) (int, error) {
	<-w.until
	return len(p), nil
}

// A caller that does not read its answer holds up no other one, however large the answer is.
func TestSharedAnswersWaitForNoReader(t *testing.T) {
	for _, size := range []int{10, mostKept + 1, mostShared + 1} {
		shareBubble(t, func(s *sharer) {
			text, goOn := strings.Repeat("x", size), make(chan struct{})
			slow := &stuck{httptest.NewRecorder(), make(chan struct{})}
			first := s.ask(s.Context(), "a", 2, slow, saying(text, goOn))
			second := s.ask(s.Context(), "a", 2, nil, saying(text, goOn))
			close(goOn)
			synctest.Wait()
			made, want := 2, "200 "+text
			if size == 10 {
				made, want = 1, want+" 0"
			}
			s.wantAnswer(second, want, made)
			close(slow.until)
			<-first
		})
	}
}

// All that wait for an answer that fails get its problem, each with its own request id. Later ones
// make theirs anew.
func TestFailuresGoToThoseThatWait(t *testing.T) {
	shareBubble(t, func(s *sharer) {
		goOn := make(chan struct{})
		fails := func(c *gin.Context) {
			<-goOn
			p := unavailable.with("for a test")
			s.failed(p, &huma.Operation{}, c)
			writeProblem(c, p)
		}
		recorders := make([]*httptest.ResponseRecorder, 20)
		answered := make([]chan string, len(recorders))
		for i := range recorders {
			recorders[i] = httptest.NewRecorder()
			recorders[i].Header().Set(requestIDHeader, fmt.Sprint("request-", i))
			answered[i] = s.ask(s.Context(), "a", 2, recorders[i], fails)
		}
		close(goOn)
		for i, w := range recorders {
			<-answered[i]
			id := fmt.Sprintf(`"request_id":"request-%d"`, i)
			if w.Code != 503 || !strings.Contains(w.Body.String(), id) || w.Header().Get("Content-Type") != problemMedia || w.Header().Get("Retry-After") == "" {
				t.Errorf("caller %d is answered %d %v %s", i, w.Code, w.Header(), w.Body)
			}
		}
		if s.made != 1 || len(s.shared.of) != 0 {
			t.Errorf("%d are made, and %d are kept", s.made, len(s.shared.of))
		}
		s.wantAnswer(s.ask(s.Context(), "a", 2, nil, saying("mended", goOn)), "200 mended", 2)
	})
}

// For a while after an answer was too large, no caller waits for the one of another.
func TestNoneWaitForWhatIsTooLarge(t *testing.T) {
	for _, size := range []int{mostKept + 1, mostShared + 1} {
		shareBubble(t, func(s *sharer) {
			text, ready := strings.Repeat("x", size), make(chan struct{})
			first := s.ask(s.Context(), "a", 2, nil, func(c *gin.Context) {
				time.Sleep(2 * sharedFor) // it is remembered from its end on
				saying(text, ready)(c)
			})
			waits := s.ask(s.Context(), "a", 2, nil, saying(text, ready))
			close(ready)
			time.Sleep(2 * sharedFor)
			s.wantAnswer(first, "200 "+text, 2)
			s.wantAnswer(waits, "200 "+text, 2)
			goOn := make(chan struct{})
			slow, other := s.ask(s.Context(), "a", 2, nil, saying(text, goOn)), s.ask(s.Context(), "a", 1, nil, saying(text, ready))
			s.wantAnswer(other, "200 "+text, 4)
			close(goOn)
			s.wantAnswer(slow, "200 "+text, 4)
			time.Sleep(sharedFor)
			s.wantAnswer(s.ask(s.Context(), "a", 2, nil, saying("small", ready)), "200 small", 5)
			s.wantAnswer(s.ask(s.Context(), "a", 2, nil, nil), "200 small 0", 5)
		})
	}
}

// A caller whose token is withdrawn while it waits for an answer does not get it.
func TestSharedAnswersOfAWithdrawnToken(t *testing.T) {
	shareBubble(t, func(s *sharer) {
		goOn := make(chan struct{})
		first := s.ask(s.Context(), "a", 2, nil, saying("secret", goOn))
		second := s.ask(s.Context(), "a", 2, nil, saying("secret", goOn))
		if err := s.callers.Set([]edge.Token{tokenOf("b", edge.ScopeRead)}); err != nil {
			s.Fatal(err)
		}
		close(goOn)
		<-first
		if got := <-second; !strings.HasPrefix(got, "403 ") || strings.Contains(got, "secret") {
			s.Errorf("it is answered %s", got)
		}
	})
}

// What is shared has the headers of what was answered first, but for its age.
func TestSharedAnswersHaveTheSameHeaders(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/v1/stats", "/v1/topics", "/v1/diagnosis", "/v1/nodes", "/v1/history", "/v1/forecast", "/v1/counts?topic=t"} {
		for _, accepts := range []string{unpacked, "Accept-Encoding: gzip"} {
			first, again := r.do("GET", path, "", mayBeOld, accepts), r.do("GET", path, "", mayBeOld, accepts)
			if again.header.Get("Age") == "" || first.header.Get("Vary") != "Accept-Encoding" || first.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s, %s: answered %v, then %v", path, accepts, first.header, again.header)
			}
			for _, h := range []http.Header{first.header, again.header} {
				for _, own := range []string{"Age", "Date", "X-Request-Id"} {
					h.Del(own)
				}
			}
			if !reflect.DeepEqual(first.header, again.header) || string(first.body) != string(again.body) {
				t.Errorf("%s, %s: answered %v, then %v", path, accepts, first.header, again.header)
			}
		}
	}
}

// Only a positive max-age says that an answer may be old, and nothing that says otherwise beside.
func TestMaxAge(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"": 0, "max-age=2": 2 * time.Second, "MAX-AGE=2, no-transform": 2 * time.Second, "max-age=9999999": time.Minute, "max-age=-1": 0, "max-age=x": 0,
		"max-age": 0, "no-cache, max-age=2": 0, "max-age=2,no-store": 0, "max-stale=5": 0, "max-age=5, max-age=0": 0,
	} {
		if got := maxAge(header); got != want {
			t.Errorf("%q is %v, want %v", header, got, want)
		}
	}
}

// However many different answers are asked for, few are kept, and half of them of one token.
func TestSharedAnswersAreBounded(t *testing.T) {
	var s sharing
	greedy := &edge.Caller{}
	add := func(caller *edge.Caller, n int) {
		t.Helper()
		for i := range n {
			key := sharedKey{caller: caller, path: string(rune('a' + i))}
			if a, mine := s.find(key, sharedFor); !mine || a == nil {
				t.Fatalf("answer %d has no room", i)
			} else if i > 0 { // the first one is being made
				s.end(key, a, madeAnswer{body: []byte("{}")})
			}
		}
	}
	full := func(caller *edge.Caller) {
		t.Helper()
		if a, _ := s.find(sharedKey{caller: caller, path: "more"}, sharedFor); a != nil {
			t.Error("there is room for more")
		}
	}
	add(greedy, sharedAtMost/2)
	full(greedy)
	add(&edge.Caller{}, sharedAtMost/2)
	full(nil)
	for _, a := range s.of {
		a.begun = a.begun.Add(-sharedFor)
	}
	if a, mine := s.find(sharedKey{path: "more"}, sharedFor); a == nil || !mine || len(s.of) != 3 {
		t.Errorf("%d are kept though they are old", len(s.of))
	}
}
