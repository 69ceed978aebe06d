package client_test

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/client"
)

// An answer that comes from a proxy instead of Lapse is recognised.
func TestAnswerOfAProxy(t *testing.T) {
	for _, test := range []struct {
		name   string
		body   string
		header string
		is     error
		text   string
		status int
	}{
		{"a proxy's 502", "<html>Bad Gateway</html>", "Content-Type: text/html", client.ErrUnknown, "Bad Gateway (status 502)", 502},
		{"a proxy's 503", "no healthy upstream", "Content-Type: text/plain", client.ErrUnknown, "no healthy upstream", 503},
		{"a redirect", "", "Location: https://login.test/", nil, "redirected to https://login.test/", 302},
		{"TLS is expected", "Client sent an HTTP request to an HTTPS server.\n", "", nil, "HTTPS server", 400},
		{"JSON of another kind", `{"error":"nope"}`, "", nil, "Not Found (status 404)", 404},
		{"nothing", "", "", client.ErrUnknown, "Unexpected answer (status 599)", 599},
		{"unauthorized", `{"type":"/problems/unauthorized","title":"A token is needed"}`, "", client.ErrUnauthorized, "A token is needed", 401},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := over(t, client.Options{Retries: -1}, func(*http.Request, string) (*http.Response, error) {
				return answer(test.status, test.body, test.header), nil
			})
			err := c.Cancel(t.Context(), "x")
			p := (*client.Problem)(nil)
			if !errors.As(err, &p) || p.Status != test.status || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, %+v", err, p)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%v is not %v", err, test.is)
			}
			if test.is == nil && (errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrInvalid)) {
				t.Errorf("%v passes for an answer of Lapse", err)
			}
		})
	}
}

// A success that cannot be read is an error, not an empty answer.
func TestUnreadableAnswers(t *testing.T) {
	for _, body := range []string{"", "<html>", `{"id":`, `[]`} {
		c := over(t, client.Options{}, func(*http.Request, string) (*http.Response, error) { return answer(200, body), nil })
		if task, err := c.Get(t.Context(), "x"); err == nil {
			t.Errorf("%q: got %+v", body, task)
		}
	}
	for _, body := range []string{`{"ids":[]}`, `{"ids":[""],"errors":[{"index":7,"problem":{}}]}`, `{"ids":[""],"errors":[{"index":0}]}`} {
		c := over(t, client.Options{}, func(*http.Request, string) (*http.Response, error) { return answer(200, body), nil })
		if got, err := c.ScheduleBatch(t.Context(), []client.Request{{Topic: "a"}}); err == nil {
			t.Errorf("%q: got %+v", body, got)
		}
	}
}

// An answer that breaks off leaves the outcome of a write unknown.
func TestBrokenAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte(`{"id":`))
	}))
	defer server.Close()
	c := made(t, client.Options{URL: server.URL})
	_, err := c.Fire(t.Context(), "x")
	check(t, "Fire", err, client.ErrUnknown)
	c.Close()
}

func TestUnreachable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	c := made(t, client.Options{URL: server.URL, Retries: 1})
	_, err := c.Fire(t.Context(), "x")
	check(t, "Fire", err, client.ErrUnreachable)
	if errors.Is(err, client.ErrUnknown) {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	requests := 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		_, _ = w.Write([]byte(`{"id":"` + r.Header.Get("Authorization") + `"}`))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	_, err := made(t, client.Options{URL: server.URL}).Fire(t.Context(), "x")
	check(t, "an unknown authority", err, client.ErrUnreachable)
	_, err = made(t, client.Options{URL: strings.Replace(server.URL, "https", "http", 1)}).Fire(t.Context(), "x")
	if err == nil || requests > 0 {
		t.Errorf("without TLS: %v", err)
	}
	settings := server.Client().Transport.(*http.Transport).TLSClientConfig
	c := made(t, client.Options{URL: server.URL, TLS: settings, Token: "s3cret"})
	task, err := c.Fire(t.Context(), "x")
	if err != nil || task.ID != "Bearer s3cret" {
		t.Errorf("got %+v, %v", task, err)
	}
	c.Close()
}

func TestOptions(t *testing.T) {
	for _, url := range []string{"", "127.0.0.1:7480", "ftp://x", "http://", "http://u:p@x", "http://x?y=z", "http://x#y"} {
		if _, err := client.New(client.Options{URL: url}); err == nil {
			t.Errorf("%q is accepted", url)
		}
	}
	_, err := client.New(client.Options{URL: "x", Token: "a b\n", Timeout: -1, MaxWait: -1})
	if err == nil {
		t.Fatal("want an error")
	}
	for _, name := range []string{"URL", "Token", "Timeout", "MaxWait"} {
		if !strings.Contains(err.Error(), "option "+name+" ") {
			t.Errorf("%s is not in %v", name, err)
		}
	}
	if strings.Contains(err.Error(), "a b") {
		t.Error("the token is in the error")
	}
	// A path in front is kept.
	w := func(r *http.Request, _ string) (*http.Response, error) {
		return answer(200, `{"id":"`+r.URL.Path+`"}`), nil
	}
	c := made(t, client.Options{URL: "http://x/lapse/", HTTPClient: &http.Client{Transport: wire(w)}})
	if task, err := c.Get(t.Context(), "a"); err != nil || task.ID != "/lapse/v1/tasks/a" {
		t.Errorf("got %+v, %v", task, err)
	}
}

// No text in place of a name leads to another route.
func TestNamesInPaths(t *testing.T) {
	w := func(r *http.Request, _ string) (*http.Response, error) {
		return answer(200, `{"id":"`+r.URL.EscapedPath()+`"}`), nil
	}
	c := over(t, client.Options{}, w)
	for _, name := range []string{"", ".", ".."} {
		_, err := c.Get(t.Context(), name)
		check(t, "Get", err, client.ErrInvalid)
		check(t, "DeleteTopic", c.DeleteTopic(t.Context(), name), client.ErrInvalid)
		_, err = c.Purge(t.Context(), name)
		check(t, "Purge", err, client.ErrInvalid)
	}
	if task, err := c.Get(t.Context(), "a/b?c#d e%"); err != nil || task.ID != "/v1/tasks/a%2Fb%3Fc%23d%20e%25" {
		t.Errorf("got %+v, %v", task, err)
	}
}

// A detail is shown as far as it says more than the title.
func TestProblemText(t *testing.T) {
	for _, test := range [][3]string{
		{"The outcome is unknown", "outcome unknown", "The outcome is unknown"},
		{"Unknown or finished", "unknown or finished", "Unknown or finished"},
		{"The receipt is stale", "the receipt is stale: the attempt has ended", "The receipt is stale: the attempt has ended"},
		{"The id is taken", "the id is taken by a task with other content", "The id is taken by a task with other content"},
		{"A token is needed", "the token is unknown", "A token is needed: the token is unknown"},
		{"Starting", "", "Starting"},
	} {
		if got := (&client.Problem{Title: test[0], Detail: test[1]}).Error(); got != test[2] {
			t.Errorf("%q and %q: got %q", test[0], test[1], got)
		}
	}
}
