package httpapi

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"reflect"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapsehq/lapse/tasks"
)

// FuzzImport checks that each line of an import is taken, refused or passed over, and that what is
// taken is the same once it was exported.
func FuzzImport(f *testing.F) {
	for _, file := range []string{"export-1.ndjson", "export-1-delivery.ndjson"} {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		for line := range bytes.Lines(text) {
			f.Add(line)
		}
	}
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m importing
		if err := m.read(data); err != nil {
			if problemOf(err) == nil {
				t.Errorf("refused with %v", err)
			}
			return
		}
		if lines := bytes.Count(data, []byte("\n")) + 1; len(m.tasks)+len(m.topics)+len(m.answer.Errors) > lines {
			t.Errorf("%d lines gave %d tasks, %d topics and %d errors", lines, len(m.tasks), len(m.topics), len(m.answer.Errors))
		}
		var text []byte
		for i := range m.tasks {
			text = appendTask(text, &m.tasks[i])
		}
		var again importing
		if err := again.read(text); err != nil || len(again.answer.Errors) > 0 {
			t.Fatalf("what was exported as %s is refused: %v, %v", text, err, again.answer.Errors)
		}
		var same []byte
		for i := range again.tasks {
			same = appendTask(same, &again.tasks[i])
		}
		if !bytes.Equal(text, same) {
			t.Errorf("exported as\n%s, and after an import as\n%s", text, same)
		}
	})
}

// mergePatch is the algorithm of RFC 7396.
func mergePatch(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	object, ok := target.(map[string]any)
	if !ok {
		object = map[string]any{}
	}
	for name, value := range p {
		if value == nil {
			delete(object, name)
		} else {
			object[name] = mergePatch(object[name], value)
		}
	}
	return object
}

// numbers decodes JSON with numbers of any size.
func numbers(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(v)
}

// FuzzMerge compares merge patches with the algorithm of the RFC, and checks that settings are
// patched or refused.
func FuzzMerge(f *testing.F) {
	for _, patch := range append([]string{
		`{"a":{"b":null}}`, `{"a":null}`, `{"a":{"b":{"c":1}}}`, `{"a":[{"b":null}]}`, `{"lease":"5s","retry":{"max_attempts":3,"max_age":null}}`,
		`{"delivery":{"kind":"webhook","url":"https://a.example/"}}`, `{"rate":{"per_second":1}}`, `{"rate":null}`, `{"on_dead":{"topic":"t"}}`,
	}, texts...) {
		f.Add([]byte(patch), []byte(`{"a":{"b":1,"d":null},"e":[1]}`))
	}
	f.Fuzz(func(t *testing.T, patch, target []byte) {
		want, change := map[string]any{}, any(nil)
		if !json.Valid(target) || numbers(target, &want) != nil || want == nil {
			return
		}
		s, object := scan(patch), membersOf(json.RawMessage(target))
		s.merge(object)
		if s.done() == nil {
			if err := numbers(patch, &change); err != nil {
				t.Fatalf("%q is taken: %v", patch, err)
			}
			text, err := json.Marshal(object)
			var got any
			if err != nil || numbers(text, &got) != nil || !reflect.DeepEqual(got, mergePatch(want, change)) {
				t.Errorf("%s and %s make %s: %v", target, patch, text, err)
			}
		}
		var set tasks.TopicSettings
		if err := patched(patch)(&set); err != nil && problemOf(err) == nil {
			t.Errorf("%q is refused with %v", patch, err)
		}
	})
}

// FuzzActions checks that what selects many tasks is read whole, or refused: a filter that was lost
// would select all.
func FuzzActions(f *testing.F) {
	for _, text := range append([]string{
		`{"action":"cancel","filter":{"topic":"t","state":"held"}}`, `{"action":"move","ids":["a","b"],"shift":"-1h"}`, `{"action":"fire","filter":{}}`, `{"ids":[]}`,
		`{"action":"requeue","filter":{"topic":"t","error_like":"(none)","reason":"buried","died_to":"2031-01-02T03:04:05Z"},"due_at":"2031-01-02T03:04:05Z","limit":3,"cursor":"x"}`,
		`{"filter":{"topic":"t"},"filter":{}}`, `{"filter":{"topic":"a","topic":"b"}}`, `{"action":"hold","filter":null}`, `{"ids":null}`,
	}, texts...) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var a tasks.Act
		s := scan(data)
		s.act(&a)
		if err := s.done(); err != nil {
			if problemOf(err) == nil {
				t.Errorf("%q is refused with %v", data, err)
			}
			return
		}
		var want struct {
			Action string       `json:"action"`
			IDs    []string     `json:"ids"`
			Filter ActionFilter `json:"filter"`
			Limit  int          `json:"limit"`
			Cursor string       `json:"cursor"`
			Dry    bool         `json:"dry_run"`
		}
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatalf("%q is taken: %v", data, err)
		}
		q, filter := &a.Query, want.Filter
		got := ActionFilter{Topic: q.Topic, Group: q.Group, IDPrefix: q.IDPrefix, Error: q.Error, ErrorLike: q.ErrorLike, Reason: string(q.Reason)}
		for _, one := range []struct {
			text *string
			set  bool
		}{{&filter.DueFrom, !q.DueFrom.IsZero()}, {&filter.DueTo, !q.DueTo.IsZero()}, {&filter.DiedFrom, !q.DiedFrom.IsZero()}, {&filter.DiedTo, !q.DiedTo.IsZero()}, {&filter.State, q.State != 0}} {
			if (*one.text != "") != one.set {
				t.Errorf("of %q is read %+v", data, a)
			}
			*one.text = ""
		}
		if got != filter || string(a.Action) != want.Action || q.Limit != want.Limit || q.Cursor != want.Cursor || a.Dry != want.Dry || !reflect.DeepEqual(a.IDs, want.IDs) {
			t.Errorf("of %q is read %+v", data, a)
		}
	})
}

// FuzzQuery checks that a query which is taken is one to package net/url, too, with each parameter
// once and not empty.
func FuzzQuery(f *testing.F) {
	for _, text := range []string{"", "topic=a", "topic=a&topic=b", "topic=", "topic", "cursor=", "%74opic=a", "topic=%zz", "a;b=c", "&&topic=a&", "list=a&list=b", "topic=a=b", "=a", "topic=+%2B", "limit=1&limit=2"} {
		f.Add(text)
	}
	op := &huma.Operation{}
	for name, kind := range map[string]string{"topic": huma.TypeString, "cursor": huma.TypeString, "limit": huma.TypeInteger, "list": huma.TypeArray} {
		op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "query", Schema: &huma.Schema{Type: kind}})
	}
	f.Fuzz(func(t *testing.T, query string) {
		unreadable, wrong := queryFaults(query, op)
		for _, fault := range append(unreadable, wrong...) {
			if fault.Problem == "" {
				t.Errorf("%q: nothing is said of %q", query, fault.Field)
			}
		}
		if len(unreadable)+len(wrong) > 0 {
			return
		}
		all, err := url.ParseQuery(query)
		if err != nil {
			t.Fatalf("%q is taken: %v", query, err)
		}
		for _, p := range op.Parameters {
			values, given := all[p.Name]
			if given && (len(values) != 1 && p.Schema.Type != huma.TypeArray || values[0] == "" && p.Name != cursorParameter) {
				t.Errorf("%q: %s is %q", query, p.Name, values)
			}
		}
	})
}
