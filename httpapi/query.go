package httpapi

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"

	"github.com/lapsehq/lapse/tasks"
)

// cursorParameter may be empty: a list begins at its beginning, whatever it selects.
const cursorParameter = "cursor"

// checkQuery is a middleware of every operation. It refuses a query with a parameter that cannot be
// parsed, that is empty, or that is given twice and is no list. Packages net/url and huma treat
// such a parameter as one that is not given, or take the first one. But a filter that is not given
// selects everything.
func checkQuery(ctx huma.Context, next func(huma.Context)) {
	query := ctx.URL()
	if query.RawQuery == "" {
		next(ctx)
		return
	}
	unreadable, wrong := queryFaults(query.RawQuery, ctx.Operation())
	switch c := humagin.Unwrap(ctx); {
	case unreadable != nil:
		writeProblem(c, malformed.withFields(unreadable))
	case wrong != nil:
		writeProblem(c, invalidFields(wrong))
	default:
		next(ctx)
	}
}

// queryFaults returns the parameters that cannot be parsed, and the known ones that are wrong. Huma
// refuses those that are unknown.
func queryFaults(query string, op *huma.Operation) (unreadable, wrong []tasks.FieldError) {
	given := map[string]int{}
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		text, value, hasValue := strings.Cut(pair, "=")
		text, _, _ = strings.Cut(text, ";")
		name, badName := url.QueryUnescape(text)
		if badName != nil {
			name = text
		}
		_, badValue := url.QueryUnescape(value)
		fault := ""
		switch {
		case strings.Contains(pair, ";"):
			fault = "must not have a semicolon in it: & separates parameters, and %3B is a semicolon"
		case badName != nil || badValue != nil:
			fault = "has a % that two hexadecimal digits do not follow; %25 is a percent sign"
		case !hasValue:
			fault = "must have a value"
		}
		if fault != "" {
			unreadable = append(unreadable, tasks.FieldError{Field: shortName(name), Problem: fault})
			continue
		}
		at := slices.IndexFunc(op.Parameters, func(p *huma.Param) bool { return p.In == "query" && p.Name == name })
		if at < 0 {
			continue
		}
		given[name]++
		switch {
		case value == "" && name != cursorParameter:
			wrong = append(wrong, tasks.FieldError{Field: name, Problem: cmp.Or(mustBe(op, name), "must not be empty")})
		case given[name] == 2 && op.Parameters[at].Schema.Type != huma.TypeArray:
			wrong = append(wrong, tasks.FieldError{Field: name, Problem: givenTwice})
		}
	}
	return unreadable, wrong
}
