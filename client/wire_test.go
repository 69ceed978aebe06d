package client_test

import (
	"errors"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/httpapi"
)

// names lists the JSON names that a type has, with those of the types within it.
func names(t reflect.Type, prefix string) (all []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() == "time" {
		return nil
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "":
			all = append(all, names(f.Type, prefix)...)
		default:
			all = append(all, prefix+name)
			all = append(all, names(f.Type, prefix+name+".")...)
		}
	}
	slices.Sort(all)
	return all
}

// The types that are not generated as a whole have all fields that a server answers, and no others.
func TestAnswersAreKnown(t *testing.T) {
	for _, pair := range [][2]any{
		{httpapi.TopicAnswer{}, client.TopicInfo{}},
		{struct {
			httpapi.Event
			Count int64 `json:"count"` // of httpapi.EventsLost
			Gap   bool  `json:"gap"`   // of httpapi.NodeChange
		}{}, client.Event{}},
	} {
		server, known := names(reflect.TypeOf(pair[0]), ""), names(reflect.TypeOf(pair[1]), "")
		if diff := cmp.Diff(server, known); diff != "" {
			t.Errorf("%T:\n%s", pair[1], diff)
		}
	}
}

// Every problem of the catalogue that a program can act on has its sentinel.
func TestProblemsAreKnown(t *testing.T) {
	text, err := os.ReadFile("../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	sentinels := []error{client.ErrInvalid, client.ErrUnauthorized, client.ErrNotFound, client.ErrNoTopic, client.ErrNoNode, client.ErrNoAct, client.ErrNotUndone, client.ErrNoSuccessor, client.ErrNoBackup, client.ErrExists, client.ErrDelivering,
		client.ErrDead, client.ErrNotDead, client.ErrHandled, client.ErrInUse, client.ErrStale, client.ErrReceipt, client.ErrRevision, client.ErrTooLarge, client.ErrOverloaded,
		client.ErrUnavailable, client.ErrUnknown}
	of := map[string]error{"outcome_unknown": client.ErrUnknown, "starting": client.ErrUnavailable, "draining": client.ErrUnavailable, "node_unavailable": client.ErrUnavailable, "overloaded": client.ErrOverloaded, "id_taken": client.ErrExists}
	none := []string{"no_such_route", "method_not_allowed", "not_acceptable"}
	found := regexp.MustCompile("(?m)^## `(/problems/([a-z_]+))`\n\n([0-9]+),").FindAllStringSubmatch(string(text), -1)
	if len(found) < 20 {
		t.Fatalf("only %d problems are documented", len(found))
	}
	for _, m := range found {
		status, _ := strconv.Atoi(m[3])
		p := &client.Problem{Type: m[1], Status: status}
		var matching []error
		for _, s := range sentinels {
			if errors.Is(p, s) {
				matching = append(matching, s)
			}
		}
		switch {
		case slices.Contains(none, m[2]) || status == 408:
			if len(matching) != 0 {
				t.Errorf("%s is %v", m[2], matching)
			}
		case len(matching) != 1:
			t.Errorf("%s is %v, want one of the sentinels", m[2], matching)
		case of[m[2]] != nil && !errors.Is(p, of[m[2]]):
			t.Errorf("%s is %v", m[2], matching)
		}
	}
}
