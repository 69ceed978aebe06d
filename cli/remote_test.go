package cli

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The token comes from the environment or from a file, and is sent to no other server.
func TestToken(t *testing.T) {
	header := ""
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Get("Authorization")
		fmt.Fprint(w, `{"topics":[]}`)
	})
	s.ok("topics", "list")
	if header != "" {
		t.Errorf("without a token: %q", header)
	}
	t.Setenv("LAPSE_TOKEN", "from-environment")
	s.ok("topics", "list")
	if header != "Bearer from-environment" {
		t.Errorf("got %q", header)
	}
	s.ok("topics", "list", "--token-from", s.file("from-file\n"))
	if header != "Bearer from-file" {
		t.Errorf("got %q", header)
	}
	s.fails(exitUsage, []string{"topics", "list", "--token-from", s.file("two\nlines")}, "Token")
	if out := s.ok("stats", "--help"); strings.Contains(out, "from-environment") {
		t.Error("the help tells the token")
	}
}

func TestCAFile(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"topics":[]}`)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	s := &shell{t, server.URL}
	s.fails(exitUnavailable, []string{"topics", "list"}, "certificate")
	ca := s.file(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	s.ok("topics", "list", "--ca-file", ca)
	t.Setenv("LAPSE_CA_FILE", ca)
	s.ok("topics", "list")
}

// The settings of a connection come from the environment, too.
func TestServerFromEnvironment(t *testing.T) {
	s := canned(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"topics":[]}`) })
	t.Setenv("LAPSE_SERVER", s.url)
	var out, errs screen
	if code := run(t.Context(), []string{"topics", "list"}, streams{&out, &errs}); code != exitOK {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	t.Setenv("LAPSE_SERVER", "somewhere")
	if code := run(t.Context(), []string{"topics", "list"}, streams{&out, &errs}); code != exitUsage {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
}

// What a single call does cannot come from a variable that was left behind: no flag and no argument
// of a command that calls a server has a variable, except those of the connection.
func TestNoVariablesForCalls(t *testing.T) {
	calls := 0
	for _, leaf := range commands(&serve{}).Leaves() {
		if leaf.Flag("token-from") == nil {
			continue
		}
		calls++
		for _, f := range leaf.Flags {
			if f.Group != "Server" && f.Env != "" {
				t.Errorf("%s --%s is set by %s", leaf.Path(), f.Name, f.Env)
			}
		}
	}
	if calls == 0 {
		t.Fatal("no command calls a server")
	}
}

func TestExitCodesOfCalls(t *testing.T) {
	for _, test := range []struct {
		status int
		name   string
		code   int
	}{
		{400, "malformed", exitUsage}, {401, "unauthorized", exitDenied}, {403, "forbidden", exitDenied}, {404, "not_found", exitNotFound},
		{404, "topic_not_found", exitNotFound}, {404, "no_such_route", exitFailed}, {405, "method_not_allowed", exitFailed},
		{409, "delivering", exitConflict}, {409, "dead", exitConflict}, {409, "handled", exitConflict}, {409, "id_taken", exitConflict},
		{409, "stale_receipt", exitConflict}, {412, "precondition_failed", exitConflict}, {413, "too_large", exitUsage}, {422, "invalid", exitUsage},
		{422, "bad_receipt", exitUsage}, {500, "internal", exitUnavailable}, {502, "", exitUnavailable},
		{429, "overloaded", exitUnavailable}, {503, "ledger_unavailable", exitUnavailable}, {503, "outcome_unknown", exitUnavailable},
	} {
		s := canned(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600") // long enough that nothing is repeated
			w.Header().Set("X-Request-Id", "req-1")
			w.WriteHeader(test.status)
			fmt.Fprintf(w, `{"type":"/problems/%s","title":"A title","status":%d}`, test.name, test.status)
		})
		title := "lapse: A title"
		if test.name == "not_found" {
			title = "lapse: a: A title"
		}
		s.fails(test.code, []string{"fire", "a"}, title)
		s.fails(test.code, []string{"fire", "a", "--json"}, fmt.Sprintf(`"exit":%d`, test.code), `"request_id":"req-1"`)
	}
	for _, name := range []string{"ledger_unavailable", "starting"} {
		s := canned(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, `{"type":"/problems/%s","title":"A title","status":503}`, name)
		})
		s.fails(exitUnavailable, []string{"fire", "a"}, "lapse: A title; /readyz of the server says why\n")
	}
	s := &shell{t, "http://127.0.0.1:1"}
	s.fails(exitUnavailable, []string{"fire", "a"}, "cannot be reached", "--server or LAPSE_SERVER names another")
	s.fails(exitUnavailable, []string{"fire", "a", "--json"}, `{"error":"the server cannot be reached`, `"exit":6}`)
}

// Of several failures the one with the first exit code in the list decides.
func TestExitCodeOfSeveral(t *testing.T) {
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		kind := strings.TrimPrefix(r.URL.Path, "/v1/tasks/")
		status := map[string]int{"not_found": 404, "delivering": 409, "overloaded": 429, "fine": 204}[kind]
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(status)
		if status != http.StatusNoContent {
			fmt.Fprintf(w, `{"type":"/problems/%s","title":"It is %s","status":%d}`, kind, kind, status)
		}
	})
	s.fails(exitNotFound, []string{"cancel", "not_found", "fine"}, "not_found: It is not_found\n")
	s.fails(exitConflict, []string{"cancel", "not_found", "delivering"}, "It is not_found\n", "It is delivering\n")
	s.fails(exitUnavailable, []string{"cancel", "delivering", "overloaded", "not_found"}, "It is overloaded\n")
}

// After an outcome that is unknown, the user learns how to repeat the command safely.
func TestUnknownOutcome(t *testing.T) {
	s := canned(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"type":"/problems/outcome_unknown","title":"The outcome is unknown","status":503}`)
	})
	s.fails(exitUnavailable, []string{"schedule", "x"}, "The outcome is unknown; to repeat it safely, add --id 0")
	code, _, errs := s.run("schedule", "x", "--id", "mine")
	if code != exitUnavailable || strings.Contains(errs, "--id") || !strings.Contains(errs, "safe to give the same command again") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
