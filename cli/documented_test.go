package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/internal/pagetest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

var update = flag.Bool("update", false, "write the generated documents anew")

// A documented setting is a row of docs/settings.md. Its range is taken from the server's refusal
// of a value, so the page cannot promise anything else than the code does.
type documented struct {
	name    string // as a flag, or as a path in the file
	env     string
	kind    reflect.Type
	def     string
	meaning string
	refused func(value string) (why string) // "" if the value is accepted

	zeroIsDefault bool // so it may be accepted although it is outside the range
	low, high     int64
	bounded       [2]bool // whether low and high are known
	rng           string  // low and high, for people
}

// rangeIn finds the range in a message of refusal.
var rangeIn = regexp.MustCompile(`must be (?:from )?(\S+?(?: [a-z]+)?) to ([^\s,;]+(?: [a-z]+)?)|must be (at least) (\S+(?: [a-z]+)?)`)

// findRange lets the server refuse a number and takes the range from the message.
func (d *documented) findRange() {
	if !d.isNumber() {
		return
	}
	var m []string
	// The first may be refused for its size alone.
	for _, beyond := range []int64{1 << 62, 1 << 30, -1} {
		if m = rangeIn.FindStringSubmatch(d.refused(d.format(beyond))); m != nil {
			break
		}
	}
	switch {
	case m == nil:
	case m[3] != "":
		d.rng = "from " + tidy(m[4])
		d.low, d.bounded[0] = d.read(m[4])
	default:
		d.rng = tidy(m[1]) + " to " + tidy(m[2])
		d.low, d.bounded[0] = d.read(m[1])
		d.high, d.bounded[1] = d.read(m[2])
	}
}

func (d *documented) isDuration() bool { return d.kind == reflect.TypeFor[time.Duration]() }

func (d *documented) isNumber() bool {
	return d.kind.Kind() >= reflect.Int && d.kind.Kind() <= reflect.Int64 && d.kind != reflect.TypeFor[slog.Level]()
}

func (d *documented) format(n int64) string {
	if d.isDuration() {
		return time.Duration(n).String()
	}
	return strconv.FormatInt(n, 10)
}

// read understands a bound: 200, 10ms, 24 h or 30 days, but no other setting's name.
func (d *documented) read(bound string) (int64, bool) {
	if !d.isDuration() {
		n, err := strconv.ParseInt(bound, 10, 64)
		return n, err == nil
	}
	if days, ok := strings.CutSuffix(bound, " days"); ok {
		n, err := strconv.Atoi(days)
		return int64(n) * int64(24*time.Hour), err == nil
	}
	n, err := time.ParseDuration(strings.ReplaceAll(bound, " ", ""))
	return int64(n), err == nil
}

// tidy writes a bound or a default for people.
func tidy(s string) string {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 10_000 {
		for i := len(s) - 3; i > 0; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
	}
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	return s
}

// refusal starts a server that cannot start, and returns its other faults.
func refusal(args ...string) string {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var errs bytes.Buffer
	args = append([]string{"serve", "--listen=127.0.0.1:0", "--log-format=none"}, args...)
	run(ctx, args, streams{io.Discard, &errs})
	var faults []string
	for line := range strings.Lines(errs.String()) {
		if fault, ok := strings.CutPrefix(line, "  "); ok && !strings.HasPrefix(fault, "log-format") {
			faults = append(faults, strings.TrimSpace(fault))
		}
	}
	return strings.Join(faults, "; ")
}

// flagsOfServe reads the grammar.
func flagsOfServe(t *testing.T) (all []documented) {
	t.Helper()
	for _, f := range commands(&serve{}).Named("serve").Flags {
		d := documented{name: f.Name, env: f.Env, kind: f.Type(), def: f.Default, meaning: f.Help}
		if f.IsList() {
			d.kind = reflect.SliceOf(d.kind)
		}
		if f.IsBool() && d.def == "" {
			d.def = "false"
		}
		d.refused = func(value string) string {
			// The settings of Redis are checked only if there is one.
			return refusal("--redis=redis://127.0.0.1:1", "--node=n", "--"+f.Name+"="+value)
		}
		d.findRange()
		all = append(all, d)
	}
	return all
}

// topicMeanings says what the settings of a topic do.
var topicMeanings = map[string]string{
	"retry.max_attempts": "Attempts, after which a task is dead. Left out, `retry.max_age` alone ends it; with `count_crashes` it is 20.",
	"retry.max_age":      "The first attempt that fails so long after the deadline is the last one. Left out: 24 h where `max_attempts` is left out too, or no bound.",
	"retry.min_backoff":  "Shortest pause before the next attempt.",
	"retry.max_backoff": "Longest pause. After the n-th attempt it is drawn evenly from `min_backoff` to `min_backoff * 2^n`," +
		" or to this where that is less.",
	"delivery":        "The way of delivery and its fields, `{kind: webhook, url: ...}`: see [delivery.md](delivery.md). Not given: pull.",
	"lease":           "How long a delivery may stay unsettled before the attempt counts as failed.",
	"concurrency":     "Deliveries to handlers at once. Receivers that pull are not bound by it.",
	"rate.per_second": "Deliveries that begin in a second, on each node, 0.001 to 1,000,000. 0: no bound.",
	"rate.burst":      "How many may begin at once after a rest. Left out (0): `per_second`, rounded up. Needs `per_second`.",
	"weight":          "Share of `max_deliveries` when they are scarce, beside other topics.",
	"spread":          "Window over which tasks of one instant are delivered, each at its own place.",
	"misfire": "What becomes of tasks that fell due while no process held them: `deliver`, `skip`, or `coalesce`, which delivers" +
		" the latest of each group. See [http.md](http.md#herds-and-misfires).",
	"dead_retention": "How long dead tasks are kept. **Then they are deleted for good.**",
	"keep_finished": "How long finished tasks can be read, with their outcome. A request that is repeated within that time is answered" +
		" as a repeat. 0: not at all. See [http.md](http.md#finished-tasks).",
	"count_crashes":         "Record each attempt before it is delivered: one more write, and a task that kills its process runs out of attempts too.",
	"concurrency_per_group": "Deliveries of one group of tasks at once, on each node, by pull too. Tasks without a group are not bound. 0: no bound. See [http.md](http.md#groups).",
	"on_dead.topic":         "A task that dies is followed by a new one of this topic. See [http.md](http.md#what-dies-goes-on).",
	"on_dead.delay":         "From the death to the deadline of that task.",
	"links":                 "Addresses that the dashboard shows with each task, by name: `logs: 'https://logs.example/?q={id}'`. `http` or `https`, at most 8, of at most 1,024 bytes each; `{id}`, `{topic}` and `{group}` stand for those of the task, not in the host.",
	"task_delivery":         "Let tasks have a `delivery` of their own: their receiver, as far as the kind lets them choose it, and their `retry`. See [delivery.md](delivery.md#a-tasks-own-delivery).",
	"paused":                "Accept tasks, but do not deliver them.",
}

// settingsOfTopics reads what a topic may have in the file.
func settingsOfTopics(t *testing.T) (all []documented) {
	t.Helper()
	s, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	topic, err := s.SetTopic(t.Context(), "t", tasks.TopicSettings{}, -1)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "lapse.yaml")
	var walk func(prefix string, settings reflect.Value)
	walk = func(prefix string, settings reflect.Value) {
		for i := range settings.NumField() {
			f := settings.Type().Field(i)
			name := prefix + strings.ToLower(capital.ReplaceAllString(f.Name, "${1}_${2}"))
			switch {
			case f.Type.Kind() == reflect.Struct:
				walk(name+".", settings.Field(i))
				continue
			case f.Type == reflect.TypeFor[tasks.Kind]():
				continue // not in the file: it depends on the handlers of the program
			}
			d := documented{name: name, kind: f.Type, def: fmt.Sprint(settings.Field(i).Interface()), meaning: topicMeanings[name]}
			if f.Type.Kind() == reflect.Map {
				d.def = "{}"
			}
			d.refused = func(value string) string {
				if name == "rate.burst" {
					value += ", per_second: 1" // without which there is none
				}
				if name == "on_dead.delay" {
					value += ", topic: other" // the same
				}
				text := "topics: {t: {" + strings.ReplaceAll(name, ".", ": {") + ": " + value + strings.Repeat("}", strings.Count(name, ".")) + "}}\n"
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					return err.Error()
				}
				return refusal("--config=" + path)
			}
			if name == "delivery" {
				d.def = "{kind: pull}"
			}
			d.zeroIsDefault = true
			d.findRange()
			all = append(all, d)
		}
	}
	walk("", reflect.ValueOf(topic.Settings))
	return all
}

// capital finds where one word of a name ends and another begins.
var capital = regexp.MustCompile(`([a-z])([A-Z])`)

// Every bound that docs/settings.md names is the last value that is accepted.
func TestDocumentedRanges(t *testing.T) {
	found := 0
	for _, d := range append(flagsOfServe(t), settingsOfTopics(t)...) {
		for i, bound := range []int64{d.low, d.high} {
			if !d.bounded[i] {
				continue
			}
			found++
			if why := d.refused(d.format(bound)); why != "" {
				t.Errorf("%s: %s is in the range and refused: %s", d.name, d.format(bound), why)
			}
			beyond := d.format(bound + int64(2*i-1))
			if d.refused(beyond) == "" && !(d.zeroIsDefault && bound == 1) {
				t.Errorf("%s: %s is outside the range and accepted", d.name, beyond)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d bounds were found: do the messages still say \"must be from x to y\"?", found)
	}
}

const settingsHead = "# Settings\n\n" +
	"This page is generated: `go test ./cli -run TestSettingsAreDocumented -update`. Its ranges are those that\n" +
	"the server names when it refuses a value; `TestDocumentedRanges` tries each bound and the value beyond it.\n\n" +
	"A setting of `lapse serve` is a flag, a variable or a line of the YAML file that `--config` names. A flag wins\n" +
	"over the variable, which wins over the file. In the file, a name has `_` for `-`: `--sweep-every` is\n" +
	"`sweep_every: 1s`, or `sweep: {every: 1s}`; `config` and the flags without a variable are not there. Durations are written `500ms`, `90s`, `1h30m`. All faults are reported at once,\n" +
	"with exit code 64, before anything is touched.\n\n" +
	"A file `lapse.yaml`, and what becomes of it with a flag and a variable:\n\n" +
	"```yaml lapse.yaml\nmax_pending: 2500000\nfailover_after: 5s\ntopics:\n  mail:\n    rate: {per_second: 50}\n```\n\n" +
	"```\n$ LAPSE_MAX_PENDING=1000000 lapse serve --config lapse.yaml --node mail-1 --print-config\n" +
	"...\nnode: \"mail-1\"  # flag --node\n...\nmax_pending: 1000000  # environment LAPSE_MAX_PENDING\n...\nfailover_after: 5s  # lapse.yaml:2\n...\n```\n\n" +
	"Traces have the variables of OpenTelemetry, and no flags: [operations.md](operations.md#tracing).\n\n" +
	"## The server\n\n" +
	"| flag | variable | default | range | |\n| --- | --- | --- | --- | --- |\n"

const topicsHead = "\n## A topic\n\n" +
	"Under `topics` and the topic's name in the file, for topics without settings over HTTP; or, with the same names,\n" +
	"by `PUT /v1/topics/{topic}` at run time ([http.md](http.md)), where durations may also have days (`7d`).\n\n" +
	"| name | default | range | |\n| --- | --- | --- | --- |\n"

func TestSettingsAreDocumented(t *testing.T) {
	code := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	cell := func(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
	var b strings.Builder
	b.WriteString(settingsHead)
	for _, d := range flagsOfServe(t) {
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s | %s |\n", d.name, code(d.env), code(d.def), d.rng, cell(d.meaning))
	}
	b.WriteString(topicsHead)
	for _, d := range settingsOfTopics(t) {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", d.name, tidy(d.def), d.rng, cell(d.meaning))
	}
	generated(t, "../docs/settings.md", b.String())
}

// generated compares a document with what it should be, or writes it.
func generated(t *testing.T, file, text string) {
	t.Helper()
	text = pagetest.Wrap(text)
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != text {
		t.Errorf("%s is not up to date: run this test with -update", file)
	}
}
