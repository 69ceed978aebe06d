package redisledger

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/internal/checkup"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// The commands that an inspection tries are those that the documentation grants.
func TestNeededCallsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, acl, _ := strings.Cut(string(text), "ACL SETUSER lapse on")
	acl, _, _ = strings.Cut(acl, "```")
	var granted []string
	for word := range strings.FieldsSeq(acl) {
		// Each connection begins with HELLO.
		if name, ok := strings.CutPrefix(word, "+"); ok && name != "hello" {
			granted = append(granted, name)
		}
	}
	called := []string{"subscribe", "unsubscribe"}
	for _, call := range neededCalls("k", "c") {
		called = append(called, fmt.Sprint(call[0]))
	}
	slices.Sort(granted)
	slices.Sort(called)
	if !slices.Equal(granted, slices.Compact(called)) {
		t.Errorf("granted %v, called %v", granted, called)
	}
}

// A Redis Cluster can be inspected, each of its servers, and keeps nothing.
func TestInspectCluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	found, err := Inspect(t.Context(), Options{URL: cluster.URL(), Node: "a"})
	if err != nil {
		t.Fatal(err)
	}
	evictions := 0
	for _, f := range found {
		if f.Verdict == checkup.Fail {
			t.Errorf("%+v", f)
		}
		if strings.HasPrefix(f.Subject, "redis eviction of ") {
			evictions++
		}
	}
	if evictions != 3 {
		t.Errorf("%d servers were looked at: %v", evictions, found)
	}
	if f := found[len(found)-1]; f.Subject != "redis commands" || f.Verdict != checkup.OK {
		t.Errorf("got %+v", f)
	}
}

// A proxy that lacks commands, and options that are wrong, are told.
func TestInspectRefusals(t *testing.T) {
	server := redistest.Start(t)
	for _, refused := range []string{"EVALSHA", "SUBSCRIBE", "HSCAN"} {
		found, err := Inspect(t.Context(), Options{URL: redistest.Refusing(t, server.Addr, redistest.Unknown, refused), Node: "a"})
		if err != nil {
			t.Fatal(err)
		}
		f := found[len(found)-1]
		if f.Verdict != checkup.Fail || !strings.Contains(f.Found, strings.ToLower(refused)) || !strings.Contains(f.Do, "no proxy") {
			t.Errorf("without %s: %+v", refused, f)
		}
	}
	if _, err := Inspect(t.Context(), Options{URL: "http://x", Node: "a"}); err == nil {
		t.Error("a wrong URL is no error")
	}
}
