package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// This file makes the page at /docs from the OpenAPI document: the operations by subject, each with
// an example to copy and a form to try it. The forms need a script, pages/assets/docs.js. All else
// can be read without it.

// docsFirst are the operations that come first within their subject: those that a user needs first.
// The others follow in the order of their paths.
var docsFirst = []string{"schedule-task", "get-task", "change-task", "cancel-task", "put-task", "schedule-batch", "list-tasks",
	"reserve-tasks", "ack", "release", "extend", "bury", "put-topic", "get-topic", "patch-topic", "ready", "stats"}

// docsWarnings are those that stand before what takes something away. The script asks before it
// sends such a request.
var docsWarnings = map[string]string{
	"cancel-task":    "This cancels a task of this server: it is not delivered, and cannot be brought back.",
	"act-on-tasks":   "This changes all tasks that the body selects, up to its limit. With \"dry_run\": true they are counted alone.",
	"cancel-group":   "This cancels all tasks of the group: they are not delivered, and cannot be brought back.",
	"bury":           "This makes the tasks of these receipts dead, whatever attempts they have left.",
	"delete-topic":   "This deletes the settings of the topic, with force its tasks too. They cannot be brought back.",
	"purge-topic":    "This deletes all tasks of the topic that wait or are ready. They cannot be brought back.",
	"delete-dead":    "This deletes dead tasks with their payloads. They cannot be brought back.",
	"drain-node":     "This has the process of the node end, once others have its tasks.",
	"give-up-spools": "This gives up the tasks in these spools. They cannot be brought back.",
}

// docsServer is the address in examples. The script puts that of the server in its place.
const docsServer = "http://127.0.0.1:7480"

// A docsPage is the page that is being written.
type docsPage struct {
	markup
	document *huma.OpenAPI
}

// renderDocs makes the page that lists the routes, from the OpenAPI document.
func renderDocs(document *huma.OpenAPI) []byte {
	subjects := map[string][]*huma.Operation{}
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		item := document.Paths[path]
		for _, op := range []*huma.Operation{item.Post, item.Get, item.Put, item.Patch, item.Delete} {
			if op != nil {
				name := subjectOf(path)
				subjects[name] = append(subjects[name], op)
			}
		}
	}
	var contents markup
	p := docsPage{document: document}
	for _, t := range document.Tags {
		operations := subjects[t.Name]
		slices.SortStableFunc(operations, func(a, b *huma.Operation) int { return cmp.Compare(docsRank(a), docsRank(b)) })
		id := strings.ToLower(strings.ReplaceAll(t.Name, " ", "-"))
		contents.add("<li><a href=\"#%s\">%s</a>\n<ul>\n", id, t.Name)
		p.add("<section id=\"%s\">\n<h2>%s</h2>\n<p class=\"soft\">%s</p>\n", id, t.Name, t.Description)
		for _, op := range operations {
			contents.add("<li><a href=\"#%s\">%s</a></li>\n", op.OperationID, op.Summary)
			p.operation(op)
		}
		contents.add("</ul></li>\n")
		p.add("</section>\n")
	}
	return fillPage("docs.html", "./", "{{version}}", html.EscapeString(document.Info.Version), "{{contents}}", contents.String(), "{{routes}}", p.String())
}

func docsRank(op *huma.Operation) int {
	if i := slices.Index(docsFirst, op.OperationID); i >= 0 {
		return i
	}
	return len(docsFirst)
}

// operation writes one operation. The first one of all is open.
func (p *docsPage) operation(op *huma.Operation) {
	open := ""
	if op.OperationID == docsFirst[0] {
		open = " open"
	}
	p.add("<details id=\"%s\""+open+">\n<summary><code><span class=\"verb\">%s</span> %s</code> <span class=\"soft\">%s</span></summary>\n",
		op.OperationID, op.Method, op.Path, op.Summary)
	if op.Description != "" {
		p.add("<p>%s</p>\n", op.Description)
	}
	body := p.body(op)
	if warning := docsWarnings[op.OperationID]; warning != "" {
		p.add("<p class=\"warning\">%s</p>\n", warning)
	}
	p.add("<h3>Example</h3>\n<pre class=\"copy\" tabindex=\"0\">%s</pre>\n", docsCommand(op, body))
	if status, answer := p.answer(op); answer != "" {
		p.add("<p>is answered %s:</p>\n<pre tabindex=\"0\">%s</pre>\n", status, answer)
	}
	p.form(op, body)
	if len(op.Parameters) > 0 {
		p.add("<table><thead><tr><th>Parameter</th><th>In</th><th>Meaning</th></tr></thead><tbody>\n")
		for _, param := range op.Parameters {
			p.add("<tr><td><code>%s</code></td><td>%s</td><td>%s</td></tr>\n", param.Name, param.In, param.Description)
		}
		p.add("</tbody></table>\n")
	}
	if op.RequestBody != nil {
		p.fields(p.document.Components.Schemas, docsContent(op.RequestBody.Content).Schema)
	}
	p.add("<table><thead><tr><th>Answer</th><th>Meaning</th></tr></thead><tbody>\n")
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		p.add("<tr><td><code>%s</code></td><td>%s</td></tr>\n", status, op.Responses[status].Description)
	}
	p.add("</tbody></table>\n</details>\n")
}

// docsContent returns the JSON of a body that may have other forms beside it.
func docsContent(content map[string]*huma.MediaType) *huma.MediaType {
	if m := content[mediaJSON]; m != nil {
		return m
	}
	for _, media := range slices.Sorted(maps.Keys(content)) {
		return content[media]
	}
	return &huma.MediaType{}
}

// value returns the example of a body as text, "" if there is none.
func (p *docsPage) value(m *huma.MediaType) string {
	names := slices.Sorted(maps.Keys(m.Examples))
	if len(names) == 0 {
		return ""
	}
	value := p.document.Components.Examples[strings.TrimPrefix(m.Examples[names[0]].Ref, exampleRef)].Value
	if text, isText := value.(string); isText {
		return text
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(value) // it came from JSON
	return strings.TrimSpace(b.String())
}

func (p *docsPage) body(op *huma.Operation) string {
	if op.RequestBody == nil {
		return ""
	}
	return p.value(docsContent(op.RequestBody.Content))
}

// answer returns the example of a success. 201 comes before 200, which is that of a repetition.
func (p *docsPage) answer(op *huma.Operation) (status, text string) {
	for _, status := range append([]string{"201"}, slices.Sorted(maps.Keys(op.Responses))...) {
		if op.Responses[status] == nil {
			continue
		}
		if strings.HasPrefix(status, "2") {
			if text := p.value(docsContent(op.Responses[status].Content)); text != "" {
				return status, text
			}
		}
	}
	return "", ""
}

// docsPath returns the path of an operation with examples in the place of its parameters.
func docsPath(op *huma.Operation) string {
	path := op.Path
	for _, param := range op.Parameters {
		if param.In == "path" {
			path = strings.ReplaceAll(path, "{"+param.Name+"}", url.PathEscape(fmt.Sprint(param.Example)))
		}
	}
	return path
}

// docsCommand is the operation as a command to copy.
func docsCommand(op *huma.Operation, body string) string {
	command := "curl"
	switch {
	case op.OperationID == "events":
		command += " -N"
	case op.Method != "GET" && (op.Method != "POST" || body == ""):
		command += " -X " + op.Method
	}
	command += " " + docsServer + docsPath(op)
	if body != "" {
		var b bytes.Buffer
		if json.Compact(&b, []byte(body)) == nil {
			body = b.String()
		}
		command += " --json '" + strings.ReplaceAll(body, "'", `'\''`) + "'"
	}
	return command
}

// form writes the form with which the operation can be tried on this server. The script shows it.
func (p *docsPage) form(op *huma.Operation, body string) {
	p.add("<form hidden data-method=\"%s\" data-path=\"%s\">\n<h3>Try it on this server</h3>\n", op.Method, op.Path)
	for _, param := range op.Parameters {
		example, id := "", op.OperationID+"-"+param.Name
		if param.Example != nil {
			example = fmt.Sprint(param.Example)
		}
		filled, required := "", ""
		if param.In == "path" {
			filled, required = example, " required"
		}
		p.add("<label for=\"%s\">%s</label><input id=\"%s\" name=\"%s\" data-in=\"%s\" value=\"%s\" placeholder=\"%s\" autocomplete=\"off\" spellcheck=\"false\""+required+">\n",
			id, param.Name, id, param.Name, param.In, filled, example)
	}
	if body != "" {
		p.add("<label for=\"%s\">Body</label><textarea id=\"%s\" name=\"body\" rows=\"%s\" spellcheck=\"false\">%s</textarea>\n",
			op.OperationID+"-body", op.OperationID+"-body", fmt.Sprint(min(2+strings.Count(body, "\n"), 16)), body)
	}
	p.add("<div class=\"actions\"><button type=\"submit\">Send</button><button type=\"button\" class=\"stop\" hidden>Stop</button></div>\n" +
		"<div class=\"answer\" role=\"status\"></div>\n</form>\n")
}

// fields writes the fields of a body.
func (m *markup) fields(schemas huma.Registry, schema *huma.Schema) {
	if schema.Items != nil {
		schema = schema.Items
	}
	if schema.Ref != "" {
		schema = schemas.SchemaFromRef(schema.Ref)
	}
	if len(schema.Properties) == 0 {
		return
	}
	m.add("<table><thead><tr><th>Field</th><th>Type</th><th>Meaning</th></tr></thead><tbody>\n")
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		p, required := schema.Properties[name], ""
		if slices.Contains(schema.Required, name) {
			required = ", required"
		}
		m.add("<tr><td><code>%s</code></td><td>%s%s</td><td>%s</td></tr>\n", name, docsType(p), required, docsAbout(p))
	}
	m.add("</tbody></table>\n")
}

func docsType(p *huma.Schema) string {
	switch {
	case len(p.OneOf) > 0:
		return "duration"
	case p.Ref != "":
		return "object"
	case p.Format != "":
		return p.Format
	case p.Items != nil:
		return p.Items.Type + " array"
	case p.Type == "":
		return "any JSON"
	}
	return p.Type
}

func docsAbout(p *huma.Schema) string {
	about := p.Description
	if p.Default != nil {
		text, _ := json.Marshal(p.Default) // the value came from JSON
		about = strings.TrimSpace(fmt.Sprintf("%s Default %s.", about, text))
	}
	return about
}
