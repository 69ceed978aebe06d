package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/webhook"
)

// describedOperations returns the OpenAPI document, and its operations by method and path.
func describedOperations(t *testing.T) (*huma.OpenAPI, map[string]*huma.Operation) {
	t.Helper()
	api, err := newServer(Config{})
	if err != nil {
		t.Fatal(err)
	}
	document, err := api.routes()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*huma.Operation{}
	for path, item := range document.Paths {
		for method, op := range map[string]*huma.Operation{"GET": item.Get, "PUT": item.Put, "POST": item.Post, "PATCH": item.Patch, "DELETE": item.Delete} {
			if op != nil {
				all[method+" "+path] = op
			}
		}
	}
	return document, all
}

// Each operation has a tag and a description. Each body has an example, which its schema admits.
func TestExamplesAreValid(t *testing.T) {
	document, operations := describedOperations(t)
	tags := map[string]bool{}
	for _, tag := range document.Tags {
		tags[tag.Name] = true
	}
	check := func(where string, content map[string]*huma.MediaType, mode huma.ValidateMode) {
		for media, m := range content {
			if len(m.Examples) == 0 {
				t.Errorf("%s: %s has no example", where, media)
			}
			for _, e := range m.Examples {
				shared := document.Components.Examples[strings.TrimPrefix(e.Ref, exampleRef)]
				if shared == nil {
					t.Errorf("%s: there is no example %s", where, e.Ref)
					continue
				}
				validate(t, where+": "+e.Ref, document.Components.Schemas, m.Schema, mode, shared.Value)
			}
		}
	}
	for where, op := range operations {
		if len(op.Tags) != 1 || !tags[op.Tags[0]] || op.Description == "" {
			t.Errorf("%s has the tags %v and the description %q", where, op.Tags, op.Description)
		}
		for _, p := range op.Parameters {
			if p.In == "path" && p.Example == nil {
				t.Errorf("%s: %s has no example", where, p.Name)
			}
			if p.Example != nil {
				validate(t, where+" "+p.Name, document.Components.Schemas, p.Schema, huma.ModeWriteToServer, p.Example)
			}
		}
		if op.RequestBody != nil {
			check(where, op.RequestBody.Content, huma.ModeWriteToServer)
		}
		problems := 0
		for status, answer := range op.Responses {
			check(where+" "+status, answer.Content, huma.ModeReadFromServer)
			if answer.Content[problemMedia] != nil {
				problems++
			}
			if strings.HasPrefix(status, "2") && status != "204" && len(answer.Content) == 0 && op.OperationID != "drain-node" {
				t.Errorf("%s is answered %s without a body", where, status)
			}
		}
		if problems < 2 {
			t.Errorf("%s shows %d problems", where, problems)
		}
	}
}

func validate(t *testing.T, where string, registry huma.Registry, schema *huma.Schema, mode huma.ValidateMode, value any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	var result huma.ValidateResult
	schema.PrecomputeMessages()
	huma.Validate(registry, schema, huma.NewPathBuffer(nil, 0), mode, value, &result)
	for _, err := range result.Errors {
		t.Errorf("%s: %v", where, err)
	}
}

// The server carries out the examples of requests as they stand.
func TestExamplesWork(t *testing.T) {
	hooks, err := webhook.New(webhook.Config{Secrets: map[string][]string{"shop": {"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hooks.Close)
	ledger, err := diskledger.Open(filepath.Join(t.TempDir(), "data"), diskledger.Options{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOn(t, ledger, tasks.Config{Ways: []tasks.Way{hooks}}, Config{BackupDir: t.TempDir()})
	_, operations := describedOperations(t)
	var all examples
	if err := json.Unmarshal(examplesFile, &all); err != nil {
		t.Fatal(err)
	}
	routes := map[string]string{}
	for where, op := range operations {
		routes[op.OperationID] = where
	}
	// The task that others are about comes first. The topic, with a receiver, comes last.
	first, last := []string{"schedule-task", "put-task", "change-task"}, []string{"put-topic", "patch-topic"}
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(all.Operations)), func(id string) bool {
		return slices.Contains(first, id) || slices.Contains(last, id)
	})
	for _, id := range slices.Concat(first, ids, last) {
		method, path, _ := strings.Cut(routes[id], " ")
		for name, value := range all.Parameters {
			path = strings.ReplaceAll(path, "{"+name+"}", fmt.Sprint(value))
		}
		for key, media := range map[string]string{"request": mediaJSON, "lines": mediaNDJSON} {
			name := all.Operations[id][key]
			if name == "" {
				continue
			}
			body, lines := all.Values[name].(string)
			if !lines {
				text, err := json.Marshal(all.Values[name])
				if err != nil {
					t.Fatal(err)
				}
				body = string(text)
			}
			if id == "reserve-tasks" {
				body = strings.Replace(body, "30s", "0s", 1)
			}
			a := r.do(method, path, body, "Content-Type: "+media)
			if a.status < 200 || a.status > 299 {
				t.Errorf("%s: the example %s is answered %d %s", id, name, a.status, a.body)
			}
		}
	}
}
