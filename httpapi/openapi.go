package httpapi

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/goccy/go-json"
)

// This file adds to the OpenAPI document what is for its readers alone: tags and examples. Both are
// data. A test checks that each example is valid.

// tags group the operations, by the beginnings of their paths. The first match counts.
var tags = []struct{ prefix, name, about string }{
	{"/v1/tasks", "Tasks", "Schedule tasks, move them, and call them off."},
	{"/v1/groups", "Groups", "Tasks that belong together."},
	{"/v1/topics/{topic}/reserve", "Receivers", "Receivers that pull: reserve tasks, and settle their deliveries."},
	{"/v1/receipts", "Receivers", ""},
	{"/v1/topics/{topic}/dead", "Dead tasks", "Tasks whose attempts are exhausted, or whose receivers gave them up."},
	{"/v1/topics", "Topics", "How the tasks of a topic are delivered and retried."},
	{"/v1/export", "Everything", "Move all tasks from one ledger to another, and back them up."},
	{"/v1/import", "Everything", ""},
	{"/v1/backup", "Everything", ""},
	{"/v1/nodes", "Nodes", "The servers that share a ledger."},
	{"/v1/session", "Sessions", "For browsers."},
	{"/", "Server", "Figures, events and probes."},
}

// subjectOf returns the tag of a path.
func subjectOf(path string) string {
	for _, t := range tags {
		if strings.HasPrefix(path, t.prefix) {
			return t.name
		}
	}
	return ""
}

//go:embed examples.json
var examplesFile []byte

// examples are the content of examples.json.
type examples struct {
	// Parameters are values by the names of parameters.
	Parameters map[string]any `json:"parameters"`
	// Problems are further fields of problems, by their kinds.
	Problems map[string]map[string]any `json:"problems"`
	// Values are bodies by name.
	Values map[string]any `json:"values"`
	// Operations name the bodies of each operation: by request, lines, and statuses of successes.
	Operations map[string]map[string]string `json:"operations"`
}

const (
	exampleRef     = "#/components/examples/"
	problemExample = "problem-"
)

// exemplify adds the example of a kind of problem to an answer. illustrate adds what it refers to.
func (a *api) exemplify(r *huma.Response, k *kind) {
	m := r.Content[problemMedia]
	if m.Examples == nil {
		m.Examples = map[string]*huma.Example{}
	}
	m.Examples[k.name] = &huma.Example{Ref: exampleRef + problemExample + k.name}
}

// illustrate adds tags and examples to the document. An error is a defect of examples.json.
func illustrate(document *huma.OpenAPI) error {
	var all examples
	if err := json.Unmarshal(examplesFile, &all); err != nil {
		return fmt.Errorf("httpapi: examples.json: %w", err)
	}
	for _, t := range tags {
		if t.about != "" {
			document.Tags = append(document.Tags, &huma.Tag{Name: t.name, Description: t.about})
		}
	}
	shown := map[string]*huma.Example{}
	for name, value := range all.Values {
		shown[name] = &huma.Example{Value: value}
	}
	for _, k := range catalogue {
		value := map[string]any{"type": problemBase + k.name, "title": k.title, "status": k.status}
		maps.Copy(value, all.Problems[k.name])
		shown[problemExample+k.name] = &huma.Example{Summary: k.title + ".", Value: value}
	}
	used := map[string]bool{}
	for _, item := range document.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op != nil {
				all.illustrate(op, used)
			}
		}
	}
	maps.DeleteFunc(shown, func(name string, _ *huma.Example) bool { return !used[name] })
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if shown[name] == nil {
			return fmt.Errorf("httpapi: examples.json has no %s", name)
		}
	}
	document.Components.Examples = shown
	return nil
}

// illustrate adds the examples of one operation, and records which it uses.
func (all *examples) illustrate(op *huma.Operation, used map[string]bool) {
	for _, p := range op.Parameters {
		if p.Schema.Type != huma.TypeArray {
			p.Example = all.Parameters[p.Name]
		}
	}
	named := all.Operations[op.OperationID]
	if op.RequestBody != nil {
		for media, m := range op.RequestBody.Content {
			key := "request"
			if media == mediaNDJSON {
				key = "lines"
			}
			show(m, named[key], used)
		}
	}
	for status, answer := range op.Responses {
		for media, m := range answer.Content {
			name := named[status]
			if media == problemMedia {
				name = "" // it has those of its kinds
			}
			show(m, name, used)
		}
	}
}

// show adds an example to a body, and records which examples the body has.
func show(m *huma.MediaType, name string, used map[string]bool) {
	if name != "" {
		m.Examples = map[string]*huma.Example{name: {Ref: exampleRef + name}}
	}
	for _, e := range m.Examples {
		used[strings.TrimPrefix(e.Ref, exampleRef)] = true
	}
}
