package deploy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// This file reads the part of PromQL that the files in deploy/ use: selectors, functions,
// aggregations with their labels before the parenthesis, and operators. What it does not know is an
// error, so that no selector is overlooked.

// A selector names series.
type selector struct {
	metric   string
	matchers []matcher
	ranged   bool
	inside   []call // the calls around it, the outermost first
}

// A matcher is a condition of a selector.
type matcher struct{ label, op, value string }

// A call is a function or an aggregation.
type call struct {
	name string
	by   []string // the labels that an aggregation keeps
}

// A query is an expression.
type query struct {
	selectors []selector
	matching  []string // labels of on and ignoring
	grouped   bool     // by an aggregation around all of it, or around one side of an operator
	keeps     []string // the labels that it keeps
}

var (
	promToken  = regexp.MustCompile(`^(?:"(?:[^"\\]|\\.)*"|[a-zA-Z_:][\w:]*|\d[\w.]*|\$\w+|[=!<>]=|=~|!~|[-+*/%^(){}\[\],=<>:])`)
	promWord   = regexp.MustCompile(`^[a-zA-Z_:]`)
	aggregates = []string{"sum", "max", "min", "avg", "count", "topk", "bottomk"}
	functions  = []string{"rate", "increase", "deriv", "histogram_quantile", "vector", "absent"}
	operators  = []string{"and", "or", "unless", "bool"}
)

func promTokens(text string) (all []string, err error) {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		token := promToken.FindString(text)
		if token == "" {
			return nil, fmt.Errorf("no token of PromQL: %s", text)
		}
		all, text = append(all, token), text[len(token):]
	}
	return all, nil
}

// parseQuery finds the selectors of an expression.
func parseQuery(text string) (q query, err error) {
	tokens, err := promTokens(text)
	if err != nil {
		return q, err
	}
	at := func(i int) string {
		if i < len(tokens) {
			return tokens[i]
		}
		return ""
	}
	// list reads labels in parentheses, and returns the place behind them.
	list := func(i int) (labels []string, next int, err error) {
		for i++; at(i) != ")"; i++ {
			switch {
			case at(i) == ",":
			case promWord.MatchString(at(i)):
				labels = append(labels, at(i))
			default:
				return nil, i, fmt.Errorf("%q where a label is expected", at(i))
			}
		}
		return labels, i + 1, nil
	}
	var inside []call
	var next call
	for i := 0; i < len(tokens); {
		switch token := tokens[i]; {
		case token == "(":
			inside, next = append(inside, next), call{}
			i++
		case token == ")":
			if len(inside) == 0 {
				return q, fmt.Errorf("a parenthesis too many in %s", text)
			}
			inside = inside[:len(inside)-1]
			i++
		case token == "[": // of a subquery
			i += slices.Index(tokens[i:], "]") + 1
		case !promWord.MatchString(token), slices.Contains(operators, token):
			i++
		case (token == "by" || token == "on" || token == "ignoring") && at(i+1) == "(":
			labels, behind, err := list(i + 1)
			if err != nil {
				return q, err
			}
			if token == "by" {
				next.by, q.grouped, q.keeps = labels, true, append(q.keeps, labels...)
			} else {
				q.matching = append(q.matching, labels...)
			}
			i = behind
		case slices.Contains(aggregates, token):
			next.name, q.grouped = token, true
			i++
		case at(i+1) == "(":
			if !slices.Contains(functions, token) {
				return q, fmt.Errorf("%s is no function that the tests know", token)
			}
			next.name = token
			i++
		default:
			s := selector{metric: token, inside: slices.Clone(inside)}
			if i++; at(i) == "{" {
				if s.matchers, i, err = parseMatchers(tokens, i); err != nil {
					return q, err
				}
			}
			if at(i) == "[" {
				s.ranged = true
				i += slices.Index(tokens[i:], "]") + 1
			}
			q.selectors = append(q.selectors, s)
		}
	}
	if len(inside) > 0 {
		return q, fmt.Errorf("a parenthesis is open in %s", text)
	}
	return q, nil
}

// parseMatchers reads what stands in braces, and returns the place behind them.
func parseMatchers(tokens []string, i int) (all []matcher, next int, err error) {
	for i++; i < len(tokens) && tokens[i] != "}"; {
		if tokens[i] == "," {
			i++
			continue
		}
		if i+2 >= len(tokens) {
			break
		}
		value, err := strconv.Unquote(tokens[i+2])
		if err != nil {
			return nil, i, fmt.Errorf("the value of %s: %w", tokens[i], err)
		}
		all = append(all, matcher{tokens[i], tokens[i+1], value})
		i += 3
	}
	if i >= len(tokens) {
		return nil, i, fmt.Errorf("braces are open")
	}
	return all, i + 1, nil
}

// targetLabels are those that Prometheus adds to all series.
var targetLabels = []string{"job", "instance"}

// openLabels have values that the tests do not know all of.
var openLabels = []string{"topic", "route"}

// check returns what is wrong with a query, given the series that there are.
func (q query) check(known map[string]*metricSeries) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	anywhere := slices.Clone(targetLabels)
	for _, s := range q.selectors {
		m := known[s.metric]
		if m == nil {
			fault("there is no metric %s", s.metric)
			continue
		}
		labels := slices.Concat(targetLabels, m.labels())
		anywhere = append(anywhere, labels...)
		for _, c := range s.matchers {
			if !slices.Contains(labels, c.label) {
				fault("%s has no label %s", s.metric, c.label)
			} else if !slices.Contains(openLabels, c.label) && m.values[c.label] != nil && !strings.Contains(c.value, "$") {
				for value := range strings.SplitSeq(c.value, "|") {
					if !m.values[c.label][value] {
						fault("%s has no %s %q", s.metric, c.label, value)
					}
				}
			}
		}
		within := ""
		quantile, le := false, false
		for _, c := range s.inside {
			if c.name != "" {
				within = c.name
			}
			quantile = quantile || c.name == "histogram_quantile"
			le = le || slices.Contains(c.by, "le")
			for _, label := range c.by {
				if !slices.Contains(labels, label) {
					fault("%s has no label %s, by which it is grouped", s.metric, label)
				}
			}
		}
		counts := within == "rate" || within == "increase"
		switch {
		case m.counts() && !(counts && s.ranged):
			fault("%s is a %s: it belongs within rate or increase, with a range", s.metric, m.kind)
		case !m.counts() && counts:
			fault("%s is a %s: no rate or increase of it tells anything", s.metric, m.kind)
		case quantile && (m.kind != "bucket" || !le):
			fault("histogram_quantile needs buckets by le; %s is a %s", s.metric, m.kind)
		}
	}
	for _, label := range q.matching {
		if !slices.Contains(anywhere, label) {
			fault("no metric has the label %s of on or ignoring", label)
		}
	}
	return faults
}

// labels are the labels that series of a query may have.
func (q query) labels(known map[string]*metricSeries) []string {
	if q.grouped {
		return q.keeps
	}
	all := slices.Clone(targetLabels)
	for _, s := range q.selectors {
		if m := known[s.metric]; m != nil {
			all = append(all, m.labels()...)
		}
	}
	return all
}

// The tests of the files in deploy/ refuse what they should refuse.
func TestQueriesAreChecked(t *testing.T) {
	known := map[string]*metricSeries{
		"c_total":  {kind: "counter", values: map[string]map[string]bool{"topic": {"x": true}, "state": {"ready": true}}},
		"g":        {kind: "gauge"},
		"h_bucket": {kind: "bucket", values: map[string]map[string]bool{"le": {"1": true}}},
	}
	for text, want := range map[string]string{
		`sum by (topic) (rate(c_total{state="ready",topic="$topic"}[5m])) > 5 * 86400`:  "",
		`histogram_quantile(0.99, sum by (job, le) (rate(h_bucket[$__rate_interval])))`: "",
		`deriv((sum by (job) (g unless ignoring (job) g == 1))[10m:1m]) > 0`:            "",
		`d > 0`:                                  "no metric d",
		`g{topic="x"}`:                           "no label topic",
		`rate(c_total{state="late"}[5m])`:        `no state "late"`,
		`rate(c_total{state=~"ready|late"}[5m])`: `no state "late"`,
		`sum by (side) (g)`:                      "no label side",
		`g and on (side) g`:                      "no metric has the label side",
		`c_total > 0`:                            "belongs within rate",
		`rate(sum(c_total))`:                     "belongs within rate",
		`rate(g[5m])`:                            "no rate or increase",
		`histogram_quantile(0.9, sum by (job) (rate(h_bucket[5m])))`: "needs buckets by le",
		`histogram_quantile(0.9, sum by (job) (rate(c_total[5m])))`:  "needs buckets by le",
		`predict_linear(g[5m], 60)`:                                  "no function",
		`sum(g`:                                                      "parenthesis",
		`g{topic="x"`:                                                "braces",
		"g # h":                                                      "no token",
	} {
		q, err := parseQuery(text)
		faults := q.check(known)
		if err != nil {
			faults = append(faults, err.Error())
		}
		if got := strings.Join(faults, "; "); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
