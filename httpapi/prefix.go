package httpapi

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/gin-gonic/gin"
)

// A prefix is the path below which a program serves a Server. It is empty, or begins with a slash
// and does not end with one. Pages use relative URLs. What else names a path of the server takes
// the prefix from here: Location, the types of problems, the OpenAPI document and cookies.
type prefix string

// CheckPrefix returns what is wrong with a value of Config.Prefix, or "".
func CheckPrefix(path string) string {
	if path == "" {
		return ""
	}
	for segment := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if segment == "" || segment == "." || segment == ".." || path[0] != '/' || strings.ContainsFunc(segment, isNoSegment) {
			return "must be a path such as /lapse, of A-Z a-z 0-9 . _ ~ - between slashes, without one at its end"
		}
	}
	return ""
}

// isNoSegment reports whether a segment of a prefix may not have a character.
func isNoSegment(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._~-", r))
}

// strip returns a request as the routes know it. The prefix may have been stripped already, by
// http.StripPrefix or a proxy.
func (p prefix) strip(r *http.Request) *http.Request {
	path, below := p.cut(r.URL.Path)
	if p == "" || !below {
		return r
	}
	raw, _ := p.cut(r.URL.RawPath)
	stripped := *r
	stripped.URL = new(url.URL)
	*stripped.URL = *r.URL
	stripped.URL.Path, stripped.URL.RawPath = path, raw
	return &stripped
}

func (p prefix) cut(path string) (rest string, below bool) {
	rest, below = strings.CutPrefix(path, string(p))
	return rest, below && (rest == "" || rest[0] == '/')
}

// leadToPage answers a request for the prefix itself. The URLs of the page are relative, so that
// the browser must know it under the path with a slash at its end.
func (s *Server) leadToPage(c *gin.Context) {
	if s.prefix != "" && c.Request.URL.Path == "" {
		to := url.URL{Path: s.prefix.path("/"), RawQuery: c.Request.URL.RawQuery}
		c.Redirect(http.StatusTemporaryRedirect, to.String())
		c.Abort()
	}
}

// path returns the path under which callers reach a path of the server.
func (p prefix) path(of string) string { return string(p) + of }

// problemType returns the type of a kind of problem.
func (p prefix) problemType(name string) string { return p.path(problemBase + name) }

// place completes the types of problems.
func (p prefix) place(problems ...*Problem) {
	for _, v := range problems {
		v.Type = p.problemType(v.Type[strings.LastIndexByte(v.Type, '/')+1:])
	}
}

// An answer with entries that are refused one by one.
type withProblems interface{ problems() []*Problem }

func (b BatchAnswer) problems() []*Problem {
	return problemsOf(b.Errors, func(e BatchError) *Problem { return e.Problem })
}

func (a Imported) problems() []*Problem {
	return problemsOf(a.Errors, func(e ImportError) *Problem { return e.Problem })
}

func (a Acted) problems() []*Problem {
	return problemsOf(a.Failed, func(e Refusal) *Problem { return e.Problem })
}

func (a SettleAnswer) problems() []*Problem {
	return problemsOf(a.Errors, func(e ReceiptError) *Problem { return e.Problem })
}

func problemsOf[E any](list []E, of func(E) *Problem) []*Problem {
	all := make([]*Problem, len(list))
	for i, e := range list {
		all[i] = of(e)
	}
	return all
}
