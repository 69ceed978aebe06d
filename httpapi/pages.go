package httpapi

import (
	"bytes"
	"crypto/rand"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"sort"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/gin-gonic/gin"
)

// The pages for people. They load nothing from other servers.
//
//go:embed pages/*.html pages/*.css
var pageFiles embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"since": func(d duration) string { return formatDuration(time.Duration(d)) },
	"style": func() template.CSS {
		css, _ := pageFiles.ReadFile("pages/style.css") // embedded: it is there
		return template.CSS(css)
	},
}).ParseFS(pageFiles, "pages/*.html"))

// writePage answers with a page. Only scripts with this nonce may run in it.
func writePage(c *gin.Context, nonce string, html []byte) {
	policy := "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if nonce != "" {
		policy += "; script-src 'nonce-" + nonce + "'"
	}
	c.Header("Content-Security-Policy", policy)
	c.Header("Referrer-Policy", "no-referrer")
	c.Data(http.StatusOK, "text/html; charset=utf-8", html)
}

func render(name string, data any) ([]byte, error) {
	var b bytes.Buffer
	err := pages.ExecuteTemplate(&b, name, data)
	return b.Bytes(), err
}

// dashboard answers GET /.
func (s *Server) dashboard(c *gin.Context) {
	nonce := rand.Text()
	html, err := render("dashboard.html", struct {
		Nonce string
		Stats Stats
	}{nonce, s.wireStats()})
	if err != nil {
		panic(err) // the template is part of the program
	}
	c.Header("Cache-Control", "no-store")
	writePage(c, nonce, html)
}

// explainProblem answers GET /problems/{name}, the page to which the type of a problem refers.
func explainProblem(c *gin.Context) {
	for _, k := range catalogue {
		if k.name != c.Param("name") {
			continue
		}
		html, err := render("problem.html", struct {
			Type, Title, Means, Remedy string
			Status                     int
		}{problemBase + k.name, k.title, k.means, k.remedy, k.status})
		if err != nil {
			panic(err) // the template is part of the program
		}
		writePage(c, "", html)
		return
	}
	noRoute(c)
}

// A docsEntry is one operation on the page of routes.
type docsEntry struct {
	Method, Path, Summary, About string
	Parameters                   []*huma.Param
	Fields                       []docsField
	Answers                      []docsAnswer
}

type docsField struct {
	Name, Type, About string
	Required          bool
}

type docsAnswer struct {
	Status, About string
}

// renderDocs makes the page that lists the routes, from the OpenAPI document.
func renderDocs(document *huma.OpenAPI) ([]byte, error) {
	paths := make([]string, 0, len(document.Paths))
	for path := range document.Paths {
		paths = append(paths, path)
	}
	sort.Strings(paths)
	var entries []docsEntry
	for _, path := range paths {
		item := document.Paths[path]
		for _, op := range []*huma.Operation{item.Post, item.Get, item.Put, item.Patch, item.Delete} {
			if op != nil {
				entries = append(entries, docsOf(document.Components.Schemas, op))
			}
		}
	}
	return render("docs.html", struct {
		Version string
		Entries []docsEntry
	}{document.Info.Version, entries})
}

func docsOf(schemas huma.Registry, op *huma.Operation) docsEntry {
	e := docsEntry{Method: op.Method, Path: op.Path, Summary: op.Summary, About: op.Description, Parameters: op.Parameters}
	if op.RequestBody != nil {
		e.Fields = docsFields(schemas, op.RequestBody.Content[mediaJSON].Schema)
	}
	for status, r := range op.Responses {
		e.Answers = append(e.Answers, docsAnswer{status, r.Description})
	}
	sort.Slice(e.Answers, func(i, j int) bool { return e.Answers[i].Status < e.Answers[j].Status })
	return e
}

func docsFields(schemas huma.Registry, schema *huma.Schema) []docsField {
	if schema.Items != nil {
		schema = schema.Items
	}
	if schema.Ref != "" {
		schema = schemas.SchemaFromRef(schema.Ref)
	}
	required := make(map[string]bool)
	for _, name := range schema.Required {
		required[name] = true
	}
	var fields []docsField
	for name, p := range schema.Properties {
		fields = append(fields, docsField{name, docsType(p), docsAbout(p), required[name]})
	}
	sort.Slice(fields, func(i, j int) bool { return fields[i].Name < fields[j].Name })
	return fields
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
