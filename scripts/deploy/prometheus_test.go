package deploy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/internal/logline"
	"github.com/lapsehq/lapse/metrics"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/scripts/internal/rig"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/webhook"
)

// A metricSeries is what a scrape shows of the series of one name.
type metricSeries struct {
	kind   string                     // counter, gauge, bucket, count or sum
	values map[string]map[string]bool // by label
}

func (m *metricSeries) labels() []string { return slices.Collect(maps.Keys(m.values)) }

// counts reports whether it only grows, but for restarts.
func (m *metricSeries) counts() bool { return m.kind != "gauge" }

var (
	sampleLine  = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? \S+$`)
	sampleLabel = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

// pinged has a port answer a command.
func pinged(t *testing.T, port *respapi.Server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = port.Serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "PING\r\nPING\r\n"); err != nil {
		t.Fatal(err)
	}
	// The second answer comes once the first command is counted.
	if _, err := io.ReadFull(c, make([]byte, len("+PONG\r\n+PONG\r\n"))); err != nil {
		t.Fatal(err)
	}
}

// scraped returns all series of a server that is one of several nodes and has had a topic.
func scraped(t *testing.T) map[string]*metricSeries {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	way, err := webhook.New(webhook.Config{Allow: []string{"loopback"}})
	if err != nil {
		t.Fatal(err)
	}
	scheduler, err := tasks.Open(t.Context(), memfleet.New().Join("n1", 4), tasks.Config{Ways: []tasks.Way{way}, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer scheduler.Close(t.Context())
	if _, err := scheduler.Schedule(t.Context(), tasks.Request{Topic: "x"}); err != nil {
		t.Fatal(err)
	}
	port, err := respapi.New(respapi.Config{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close(t.Context())
	pinged(t, port)
	var api *httpapi.Server
	api, err = httpapi.New(httpapi.Config{
		Log: quiet,
		Metrics: func(of *tasks.Scheduler) http.Handler {
			return metrics.ServerHandler(of, api, port, logline.New(io.Discard, nil))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	api.Attach(scheduler)
	scrape := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		api.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/metrics", nil))
		return w
	}
	scrape() // the next one has the time of this one
	w := scrape()
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	all := map[string]*metricSeries{"up": {kind: "gauge"}}
	kinds := map[string]string{}
	for lines := bufio.NewScanner(w.Body); lines.Scan(); {
		line := lines.Text()
		if of, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(of, " ")
			kinds[name] = kind
		}
		sample := sampleLine.FindStringSubmatch(line)
		if sample == nil {
			continue
		}
		name := sample[1]
		kind, ok := kinds[name]
		for _, part := range []string{"bucket", "count", "sum"} {
			if of, cut := strings.CutSuffix(name, "_"+part); !ok && cut && kinds[of] != "" {
				kind = part
			}
		}
		if all[name] == nil {
			all[name] = &metricSeries{kind, map[string]map[string]bool{}}
		}
		for _, l := range sampleLabel.FindAllStringSubmatch(sample[2], -1) {
			if all[name].values[l[1]] == nil {
				all[name].values[l[1]] = map[string]bool{}
			}
			all[name].values[l[1]][l[2]] = true
		}
	}
	return all
}

const (
	rulesFile     = rig.Root + "/deploy/prometheus/lapse.rules.yml"
	ruleTestsFile = rig.Root + "/deploy/prometheus/lapse.rules.test.yml"
	dashboardFile = rig.Root + "/deploy/grafana/lapse.json"
	runbookPage   = rig.Root + "/docs/operations.md"
)

// An alert is a rule for Prometheus.
type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string

	interval string // of its group; empty: Prometheus' own
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalWithOptions(text, into, yaml.Strict())
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func readAlerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name     string
			Interval string
			Rules    []alert
		}
	}
	readYAML(t, rulesFile, &file)
	for _, g := range file.Groups {
		for _, a := range g.Rules {
			a.interval = g.Interval
			all = append(all, a)
		}
	}
	return all
}

// A timing wheel that does not fire is told within a minute: the rule waits for nothing, and is
// looked at four times a minute whatever Prometheus' own interval is.
func TestDeadWheelIsToldWithinAMinute(t *testing.T) {
	for _, a := range readAlerts(t) {
		if a.Alert == "LapseRescued" {
			if a.For != "0s" || a.interval != "15s" {
				t.Errorf("it waits for %s, and is looked at every %q", a.For, a.interval)
			}
			return
		}
	}
	t.Error("there is no alert LapseRescued")
}

var (
	alertName  = regexp.MustCompile(`^Lapse[A-Z][A-Za-z]+$`)
	ruleLabel  = regexp.MustCompile(`\$labels\.(\w+)`)
	ruleQuery  = regexp.MustCompile(`printf "(\w+\{[^"]*\})" `)
	ruleFigure = regexp.MustCompile(`\{\{[^}]*\$value[^}]*\}\}`)
	docAlert   = regexp.MustCompile("(?m)^\\| \\[`(Lapse\\w+)`\\]\\(#([\\w-]+)\\) \\| ")
)

// Each alert asks for metrics, labels and values that a server has, tells its figure, and leads to
// docs/operations.md.
func TestAlerts(t *testing.T) {
	known := scraped(t)
	for _, a := range readAlerts(t) {
		t.Run(a.Alert, func(t *testing.T) {
			if !alertName.MatchString(a.Alert) || a.For == "" || a.Annotations["summary"] == "" {
				t.Errorf("%+v", a)
			}
			if severity := a.Labels["severity"]; severity != "critical" && severity != "warning" {
				t.Errorf("its severity is %q", severity)
			}
			if url := a.Annotations["runbook_url"]; !strings.Contains(url, "/docs/operations.md#") {
				t.Errorf("its runbook is %q", url)
			}
			q, err := parseQuery(a.Expr)
			if err != nil {
				t.Fatal(err)
			}
			for _, fault := range q.check(known) {
				t.Errorf("%s: %s", a.Expr, fault)
			}
			text := a.Annotations["description"]
			if !ruleFigure.MatchString(text) {
				t.Errorf("it does not tell the figure: %s", text)
			}
			for _, m := range ruleLabel.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(q.labels(known), m[1]) {
					t.Errorf("it has no label %s: %s", m[1], a.Expr)
				}
			}
			for _, m := range ruleQuery.FindAllStringSubmatch(text, -1) {
				asked, err := parseQuery(strings.ReplaceAll(m[1], "%q", `"n1"`))
				if err != nil {
					t.Fatal(err)
				}
				for _, fault := range asked.check(known) {
					t.Errorf("%s: %s", m[1], fault)
				}
			}
		})
	}
}

// docs/operations.md lists the same alerts in the same order, and links to the headings that they
// lead to; TestLinks of scripts/docs finds one that is not there.
func TestAlertsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(runbookPage)
	if err != nil {
		t.Fatal(err)
	}
	var listed, rules []string
	for _, m := range docAlert.FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, m[1]+" | "+m[2])
	}
	for _, a := range readAlerts(t) {
		_, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "#")
		rules = append(rules, a.Alert+" | "+anchor)
	}
	if !slices.Equal(listed, rules) {
		t.Errorf("the page has\n%s\nand the rules have\n%s", strings.Join(listed, "\n"), strings.Join(rules, "\n"))
	}
}

// Each alert has a case in which promtool sees it fire, and one in which it does not.
func TestAlertsHaveCases(t *testing.T) {
	var file struct {
		RuleFiles          []string `yaml:"rule_files"`
		EvaluationInterval string   `yaml:"evaluation_interval"`
		Tests              []struct {
			Name, Interval string
			InputSeries    []struct{ Series, Values string } `yaml:"input_series"`
			AlertRuleTest  []struct {
				EvalTime  string `yaml:"eval_time"`
				Alertname string
				ExpAlerts []struct {
					Labels      map[string]string `yaml:"exp_labels"`
					Annotations map[string]string `yaml:"exp_annotations"`
				} `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, ruleTestsFile, &file)
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.AlertRuleTest {
			fires[c.Alertname] = fires[c.Alertname] || len(c.ExpAlerts) > 0
			rests[c.Alertname] = rests[c.Alertname] || len(c.ExpAlerts) == 0
		}
	}
	for _, a := range readAlerts(t) {
		if !fires[a.Alert] || !rests[a.Alert] {
			t.Errorf("%s fires in a case: %v, rests in a case: %v", a.Alert, fires[a.Alert], rests[a.Alert])
		}
	}
}

// Prometheus itself takes the rules and the expressions of the dashboard, and the cases come out as
// they say.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not on the PATH; it comes with Prometheus")
	}
	board, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	asRules := "groups:\n- name: dashboard\n  rules:\n"
	for i, m := range regexp.MustCompile(`"expr": "(.+)",`).FindAllStringSubmatch(string(board), -1) {
		expr := strings.ReplaceAll(m[1], "$__rate_interval", "5m")
		asRules += fmt.Sprintf("  - {record: 'panel:%d', expr: \"%s\"}\n", i, expr)
	}
	panels := filepath.Join(t.TempDir(), "panels.yml")
	if err := os.WriteFile(panels, []byte(asRules), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", rulesFile, panels}, {"test", "rules", ruleTestsFile}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// A panel is a part of a dashboard of Grafana.
type panel struct {
	ID                      int
	Type, Title             string
	Datasource              struct{ Type, UID string }
	GridPos                 struct{ H, W, X, Y int }
	FieldConfig             struct{ Defaults struct{ Unit string } }
	Targets                 []panelTarget
	Collapsed               bool
	Panels, Transformations []json.RawMessage
}

type panelTarget struct {
	RefID, Expr, LegendFormat string
	Datasource                struct{ Type, UID string }
}

var (
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// Each panel of the dashboard asks for what a server has, and has a unit. No two share a place.
func TestDashboard(t *testing.T) {
	known := scraped(t)
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Title, UID    string
		SchemaVersion int
		Templating    struct {
			List []struct {
				Name, Type, Definition string
				Query                  json.RawMessage
			}
		}
		Panels []panel
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	check := func(where, expr string) query {
		q, err := parseQuery(expr)
		if err != nil {
			t.Errorf("%s: %v", where, err)
		}
		for _, fault := range q.check(known) {
			t.Errorf("%s: %s: %s", where, expr, fault)
		}
		return q
	}
	var variables []string
	for _, v := range board.Templating.List {
		variables = append(variables, v.Name)
		var asked struct{ Query string }
		if v.Type != "query" {
			continue
		} else if err := json.Unmarshal(v.Query, &asked); err != nil {
			t.Fatal(err)
		}
		if v.Definition != asked.Query { // Grafana shows the one and asks the other
			t.Errorf("the variable %s is defined as %s, and asks for %s", v.Name, v.Definition, asked.Query)
		}
		m := labelValues.FindStringSubmatch(asked.Query)
		if m == nil {
			t.Errorf("the variable %s asks for %s", v.Name, asked.Query)
		} else if q := check(v.Name, m[1]); m[2] != v.Name || !slices.Contains(q.labels(known), v.Name) {
			t.Errorf("the variable %s is of the label %s", v.Name, m[2])
		}
	}
	if want := []string{"datasource", "job", "instance", "topic"}; !slices.Equal(variables, want) {
		t.Errorf("the variables are %q, want %q", variables, want)
	}
	var rows []string
	ids, places := map[int]bool{}, map[[2]int]string{}
	for i := range board.Panels {
		p := &board.Panels[i]
		if ids[p.ID] || p.Title == "" {
			t.Errorf("%d %q: an id twice, or no title", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := places[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s: its place is beyond the grid, or that of %s", p.Title, other)
				}
				places[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s: no unit, no query, or another data source", p.Title)
		}
		for _, target := range p.Targets {
			q := check(p.Title, target.Expr)
			for _, m := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(q.labels(known), m[1]) {
					t.Errorf("%s: %s has no label %s of its legend", p.Title, target.Expr, m[1])
				}
			}
		}
	}
	want := []string{"Overview", "Throughput", "Lateness", "Deliveries by outcome", "Ledger", "Nodes", "Sweep and audit", "Clients of Redis"}
	if !slices.Equal(rows, want) || board.UID != "lapse" || board.SchemaVersion < 36 {
		t.Errorf("the rows are %q, want %q; uid %s, schema %d", rows, want, board.UID, board.SchemaVersion)
	}
}

// The scrape of these tests shows every metric: an expression is not refused since one is missing.
func TestScrapeIsWhole(t *testing.T) {
	known := scraped(t)
	described := make(chan *prometheus.Desc, 1000)
	metrics.NewCollector(nil).Describe(described)
	close(described)
	if len(described) < 90 {
		t.Errorf("%d metrics are described", len(described))
	}
	for d := range described {
		name := regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1]
		if known[name] == nil && known[name+"_bucket"] == nil {
			t.Errorf("no series of %s", name)
		}
	}
}
