package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/gin-gonic/gin"
	"github.com/goccy/go-json"
)

// An api is huma's view of the server, with the fields that huma lacks.
type api struct {
	huma.API
	server *Server
}

func (s *Server) newAPI(g *gin.Engine) *api {
	format := huma.Format{Marshal: marshal, Unmarshal: json.Unmarshal}
	config := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Servers: []*huma.Server{{URL: cmp.Or(string(s.prefix), "/"), Description: "The server that has answered this document."}},
			Info: &huma.Info{
				Title:       "Lapse",
				Version:     s.version,
				Description: "Makes things happen the moment their time runs out. Every failure is a problem document (RFC 9457) of a type that /problems/ explains.",
				Contact:     &huma.Contact{Name: "Lapse", URL: "https://github.com/lapsehq/lapse"},
				License:     &huma.License{Name: "Apache License 2.0", Identifier: "Apache-2.0"},
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token":    {Type: "http", Scheme: "bearer", Description: "Needed where the server has tokens. The x-scopes of each operation are the scopes of which it needs any; admin opens everything."},
					"password": {Type: "http", Scheme: "basic", Description: "For browsers: the token as the password, with any name. For reading only."},
					"session":  {Type: "apiKey", In: "cookie", Name: sessionCookie, Description: "For browsers: the cookie of POST /v1/session. Except with GET, the header X-Lapse-CSRF must have the csrf of GET /v1/session."},
				},
			},
		},
		Formats:                      map[string]huma.Format{mediaJSON: format, "json": format},
		DefaultFormat:                mediaJSON,
		Transformers:                 []huma.Transformer{s.translate},
		RejectUnknownQueryParameters: true,
	}
	return &api{humagin.New(g, config), s}
}

func marshal(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // these answers are not read as HTML
	return e.Encode(v)
}

type kinds []*kind

func (k kinds) and(more ...*kind) kinds { return append(slices.Clip(k), more...) }

// A route is what the OpenAPI document says of an operation beyond the types of
// its handler.
type route struct {
	id, method, path string
	allow            allow // which tokens open it
	summary, about   string
	status           int          // of a success; 0: 200
	also             []int        // other statuses of a success, with the same body
	reads            reflect.Type // the body; nil: none
	optional         bool         // the body may be left out
	lines            bool         // the body may be one value a line
	takes, tells     string       // the body, or the answer, has lines: of what
	shared           bool         // many callers may have the same answer, see share
	media            string       // another media type that the body may have
	answers          reflect.Type // the answer, where the handler's type does not tell
	streams          []any        // what the server-sent events of the answer hold
	fails            kinds
}

// add registers a route. It turns the errors of the handler into problems.
func add[I, O any](a *api, r route, handler func(context.Context, *I) (*O, error)) {
	a.server.scopes[routeKey{r.method, strings.NewReplacer("{", ":", "}", "").Replace(r.path)}] = r.allow
	r.fails = r.fails.and(malformed) // a query that cannot be parsed
	if r.allow != public {
		r.fails = r.fails.and(unauthorized, forbidden)
	}
	handle := func(ctx context.Context, in *I) (*O, error) {
		out, err := handler(ctx, in)
		if err != nil {
			return nil, problem(ctx, err)
		}
		return out, nil
	}
	through := append(huma.Middlewares{checkQuery}, straight(a.server, handle)...)
	if r.shared {
		through = append(through, a.server.share)
	}
	op := huma.Operation{
		OperationID: r.id, Method: r.method, Path: r.path,
		Summary: r.summary, Description: r.description(), Tags: []string{subjectOf(r.path)},
		DefaultStatus: r.status,
		Responses:     a.failures(r.fails),
		Security:      r.security(),
		Extensions:    r.extensions(),
		Middlewares:   through,
	}
	huma.Register(a.API, op, handle)
	a.complete(r)
}

// An answerer writes the header of an answer. It returns the status, 0 for that of the route, and
// the body.
type answerer interface {
	parts(h http.Header) (status int, body any)
}

// straight answers a route without huma's look at types at run time, which costs as much as a task
// does. The route's input must be nothing but the request, and its output an answerer. Where there
// is a query huma judges it.
func straight[I, O any](s *Server, handle func(context.Context, *I) (*O, error)) huma.Middlewares {
	call, plain := any(handle).(func(context.Context, *request) (*O, error))
	if _, writes := any(new(O)).(answerer); !plain || !writes {
		return nil
	}
	return huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
		c := humagin.Unwrap(ctx)
		if c.Request.URL.RawQuery != "" {
			next(ctx)
			return
		}
		out, err := call(c.Request.Context(), &request{c})
		if err != nil {
			p := err.(*Problem) //nolint:errorlint // add has made it one
			s.failed(p, ctx.Operation(), c)
			writeProblem(c, p)
			return
		}
		status, body := any(out).(answerer).parts(c.Writer.Header())
		s.placeProblems(body)
		c.Header("Content-Type", mediaJSON)
		c.Status(cmp.Or(status, ctx.Operation().DefaultStatus))
		_ = marshal(c.Writer, body) // an error means that the caller has gone
	}}
}

// security describes which credentials open a route: one entry for each. An empty list says that
// none is needed; without a list the document would say nothing. The lists of names are empty,
// since only OAuth 2 and OpenID Connect have scopes for all tools: x-scopes has them.
func (r *route) security() []map[string][]string {
	ways := []map[string][]string{}
	if r.allow == public {
		return ways
	}
	ways = append(ways, map[string][]string{"token": {}}, map[string][]string{"session": {}})
	if r.method == http.MethodGet {
		ways = append(ways, map[string][]string{"password": {}})
	}
	return ways
}

// extensions name the scopes of which a route needs any.
func (r *route) extensions() map[string]any {
	if r.allow == public {
		return nil
	}
	return map[string]any{"x-scopes": (r.allow | admins).rights().List()}
}

// description tells what is to be known of a route, and who may use it.
func (r *route) description() string {
	if r.allow == public {
		return r.about + " Needs no token."
	}
	return r.about + " Needs the scope " + (r.allow | admins).rights().String() + "."
}

// problem turns an error of a handler into the answer. An error that is in no table is a defect.
// Only such errors are logged, by translate.
func problem(ctx context.Context, err error) *Problem {
	if p := problemOf(err); p != nil {
		return p
	}
	p := internal.with("")
	if ctx.Err() == nil { // otherwise the caller has gone, and the error follows from that
		p.cause = err
	}
	return p
}

// failures describes the answers of these kinds, and of any other kind.
func (a *api) failures(fails kinds) map[string]*huma.Response {
	schema := a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")
	content := func() map[string]*huma.MediaType { return map[string]*huma.MediaType{problemMedia: {Schema: schema}} }
	all := map[string]*huma.Response{"default": {Description: "A problem", Content: content()}}
	a.exemplify(all["default"], internal)
	for _, k := range fails {
		status := strconv.Itoa(k.status)
		line := "`" + problemBase + k.name + "`: " + k.title + "."
		if r := all[status]; r == nil {
			all[status] = &huma.Response{Description: line, Content: content()}
		} else if !strings.Contains(r.Description, line) {
			r.Description += " " + line
		}
		a.exemplify(all[status], k)
		if k.retry > 0 {
			all[status].Headers = map[string]*huma.Param{"Retry-After": {
				Description: "Seconds to wait.", Schema: &huma.Schema{Type: huma.TypeInteger},
			}}
		}
	}
	return all
}

// complete adds to the document what huma must not know when it registers the route: huma would
// read and check a body that it knew of a second time.
func (a *api) complete(r route) {
	item := a.OpenAPI().Paths[r.path]
	op := map[string]*huma.Operation{
		http.MethodGet: item.Get, http.MethodPut: item.Put, http.MethodPost: item.Post,
		http.MethodPatch: item.Patch, http.MethodDelete: item.Delete,
	}[r.method]
	schemas := a.OpenAPI().Components.Schemas
	if r.reads != nil {
		op.RequestBody = &huma.RequestBody{
			Required: !r.optional,
			Content:  map[string]*huma.MediaType{mediaJSON: {Schema: schemas.Schema(r.reads, true, "")}},
		}
		if r.media != "" {
			op.RequestBody.Content[r.media] = op.RequestBody.Content[mediaJSON]
		}
		if r.lines {
			op.RequestBody.Content[mediaNDJSON] = &huma.MediaType{
				Schema: &huma.Schema{Type: huma.TypeString, Description: "One task a line."},
			}
		}
	}
	if r.takes != "" {
		op.RequestBody = &huma.RequestBody{Required: true, Content: linesOf(r.takes)}
	}
	success := op.Responses[strconv.Itoa(op.DefaultStatus)]
	if r.tells != "" {
		success.Content = linesOf(r.tells)
	}
	if r.answers != nil {
		success.Content = map[string]*huma.MediaType{mediaJSON: {Schema: schemas.Schema(r.answers, true, "")}}
	}
	if r.streams != nil {
		one := &huma.Schema{Description: "The data of one event, JSON in one line."}
		for _, v := range r.streams {
			one.OneOf = append(one.OneOf, schemas.Schema(reflect.TypeOf(v), true, ""))
		}
		success.Content = map[string]*huma.MediaType{mediaEvents: {Schema: &huma.Schema{Type: huma.TypeArray, Items: one}}}
	}
	for _, status := range r.also {
		other := *success
		other.Description = http.StatusText(status)
		other.Content = map[string]*huma.MediaType{} // with an example of its own
		for media, m := range success.Content {
			other.Content[media] = &huma.MediaType{Schema: m.Schema}
		}
		op.Responses[strconv.Itoa(status)] = &other
	}
}

// linesOf describes a text of lines.
func linesOf(description string) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{mediaNDJSON: {Schema: &huma.Schema{Type: huma.TypeString, Description: description}}}
}

// describe freezes the OpenAPI document and the page that shows it.
func (s *Server) describe(a *api) error {
	document := a.OpenAPI()
	// huma registers its own error type for every operation. No operation refers to it.
	delete(document.Components.Schemas.Map(), "ErrorModel")
	delete(document.Components.Schemas.Map(), "ErrorDetail")
	if err := illustrate(document); err != nil {
		return err
	}
	var err error
	if s.spec, err = document.MarshalJSON(); err != nil {
		return fmt.Errorf("httpapi: OpenAPI document: %w", err)
	}
	s.docs = renderDocs(document)
	return nil
}

// A request gives a handler gin's context, for the body of the request.
type request struct{ gin *gin.Context }

// Resolve is called by huma before the handler.
func (r *request) Resolve(ctx huma.Context) []error {
	r.gin = humagin.Unwrap(ctx)
	return nil
}

// A reply is an answer with a body.
type reply[B any] struct{ Body B }

func (r *reply[B]) parts(http.Header) (int, any) { return 0, &r.Body }
