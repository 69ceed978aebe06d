package commandline

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type shared struct {
	Server string `default:"here" group:"Server" help:"URL of the server."`
}

type put struct {
	shared
	Name  string            `arg:"" help:"Of the thing."`
	More  []string          `arg:"" optional:"" name:"id" help:"Other things."`
	Kind  string            `placeholder:"KIND" help:"What it is. One of many."`
	Max   int               `default:"3" help:"At most."`
	Wait  time.Duration     `help:"So long."`
	Rate  *float64          `env:"-" help:"So often."`
	On    *bool             `negatable:"" help:"Whether it is on."`
	All   bool              `help:"All."`
	None  string            `empty:"" help:"An empty one takes it away."`
	Tags  []string          `help:"Tags."`
	Times []string          `sep:";" placeholder:"TIME" help:"Times."`
	Raw   []string          `sep:"none" help:"Texts."`
	Head  map[string]string `placeholder:"NAME=VALUE" help:"Headers."`

	TLSKeyFile string `help:"A key."`
}

type get struct {
	Shape string `arg:"" enum:"round,flat" help:"The shape."`
	By    string `required:"" help:"The author."`
}

func table(p *put, g *get) *Command {
	return New(&Command{Name: "app", Help: "It does things.", Below: []*Command{
		{Name: "put", Target: p, Help: "Put a thing.", Detail: "It stays."},
		{Name: "one", Group: "Things", Help: "About one.", Default: "get", Below: []*Command{
			{Name: "get", Target: g, Help: "Get it."},
		}},
	}}, "APP_")
}

// readLine parses and fills, and returns everything that is wrong.
func readLine(root *Command, words string) (*Line, error) {
	line, err := root.Parse(strings.Fields(words))
	if err != nil || line.Help {
		return line, err
	}
	var all []error
	err = line.Fill(func(p *Param, err error) bool {
		all = append(all, fmt.Errorf("%s: %w", p.Name, err))
		return true
	})
	return line, errors.Join(append(all, err)...)
}

func TestLines(t *testing.T) {
	rate, on, off := 0.0, true, false
	for words, want := range map[string]put{
		"a":                             {Name: "a"},
		"a --kind=x --max 5 b c":        {Name: "a", More: []string{"b", "c"}, Kind: "x", Max: 5},
		"--kind x a --kind y":           {Name: "a", Kind: "y"},
		"a --none= --all":               {Name: "a", All: true},
		"a --kind - -- --kind -h":       {Name: "a", Kind: "-", More: []string{"--kind", "-h"}},
		"a --kind -5 --wait 1d2h":       {Name: "a", Kind: "-5", Wait: 26 * time.Hour},
		"a --rate 0 --on":               {Name: "a", Rate: &rate, On: &on},
		"a --no-on --all=no":            {Name: "a", On: &off},
		"a --on=false --no-on=false":    {Name: "a", On: &on},
		"a,b --tags 1,2 --tags 3":       {Name: "a,b", Tags: []string{"1", "2", "3"}},
		"a --times 1,2;3 --raw 1,2":     {Name: "a", Times: []string{"1,2", "3"}, Raw: []string{"1,2"}},
		"a --max 0x10":                  {Name: "a", Max: 16},
		"a --head b=c,d=e --head f=g=h": {Name: "a", Head: map[string]string{"b": "c,d=e", "f": "g=h"}},
		"a --tls-key-file f":            {Name: "a", TLSKeyFile: "f"},
	} {
		var got put
		if _, err := readLine(table(&got, &get{}), "put "+words); err != nil {
			t.Errorf("%s: %v", words, err)
		}
		want.Server = "here"
		if want.Max == 0 {
			want.Max = 3
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(put{}, shared{})); diff != "" {
			t.Errorf("%s: %s", words, diff)
		}
	}
}

func TestWrongLines(t *testing.T) {
	for words, want := range map[string]string{
		"":                          `expected one of "put", "one"; see app --help`,
		"putt":                      `unexpected argument putt, did you mean "put"?; see app --help`,
		"frobnicate":                `unexpected argument frobnicate; see app --help`,
		"put":                       `expected "<name>"; see app put --help`,
		"put a --king x":            `unknown flag --king, did you mean "--kind"?; see app put --help`,
		"put a --no-all":            `unknown flag --no-all; see app put --help`,
		"put a -x":                  `unknown flag -x; see app put --help`,
		"put a --kind":              `--kind: must have a value; see app put --help`,
		"put a --kind -- x":         `--kind: must have a value; see app put --help`,
		"put a --kind --all":        `--kind: must have a value, and --all looks like a flag; perhaps try --kind=--all; see app put --help`,
		"put a --max 0 --wait soon": "wait: must be a duration such as \"90s\", \"30m\", \"7d\" or \"1d12h\"\n",
		"put a --max 0 --rate x":    "max: must not be zero\nrate: must be a number, not \"x\"",
		"put a --kind=":             `kind: must not be empty`,
		"put a --tags=":             `tags: must not be empty`,
		"put a --tags a,,b":         `tags: must not have an empty element`,
		"put a --max= --all=maybe":  "max: must not be empty\nall: must be true, 1, yes, false, 0 or no, not \"maybe\"",
		"put a --head b":            `head: must be NAME=VALUE, not "b"`,
		"one":                       `expected "<shape>"; see app one get --help`,
		"one get square --by me":    `shape: must be round or flat, not "square"`,
		"one flat more":             `unexpected argument more; see app one get --help`,
		"one flat":                  `missing flags: --by=BY; see app one get --help`,
	} {
		_, err := readLine(table(&put{}, &get{}), words)
		if err == nil || !strings.Contains(err.Error()+"\n", strings.TrimSuffix(want, "\n")) {
			t.Errorf("%s: %v", words, err)
		}
	}
}

// A wrong value that is not collected ends it, and is told with its source.
func TestWrongValueEnds(t *testing.T) {
	line, err := table(&put{}, &get{}).Parse([]string{"put", "a"})
	if err != nil {
		t.Fatal(err)
	}
	line.Command.Flag("max").Give("the moon", "x")
	err = line.Fill(func(*Param, error) bool { return false })
	if want := `--max (the moon): must be an integer, not "x"; see app put --help`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// A line wins over what is given later.
func TestOtherSources(t *testing.T) {
	var p put
	line, err := table(&p, &get{}).Parse([]string{"put", "a", "--kind", "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range line.Command.Flags {
		f.Give("the moon", "5")
		f.Give("the sun", "6")
		if _, named := map[string]bool{"rate": true}[f.Name]; named == (f.Env != "") {
			t.Errorf("%s is set by %q", f.Name, f.Env)
		}
	}
	err = line.Fill(func(*Param, error) bool { return true })
	if kind, maximum := line.Command.Flag("kind"), line.Command.Flag("max"); err != nil || p.Kind != "x" || p.Max != 5 ||
		kind.Source != "flag --kind" || maximum.Source != "the moon" || maximum.Env != "APP_MAX" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestHelp(t *testing.T) {
	for words, want := range map[string]string{
		"put --all -h": `Usage: app put <name> [<id> ...] [flags]

Put a thing.

It stays.

Arguments:
  <name>        Of the thing.
  [<id> ...]    Other things.

Flags:
  -h, --help               Show this help.
      --kind=KIND          What it is. One of many ($APP_KIND).
      --max=3              At most ($APP_MAX).
      --wait=WAIT          So long ($APP_WAIT).
      --rate=RATE          So often.
      --[no-]on            Whether it is on ($APP_ON).
      --all                All ($APP_ALL).
      --none=NONE          An empty one takes it away ($APP_NONE).
      --tags=TAGS          Tags ($APP_TAGS).
      --times=TIME;...     Times ($APP_TIMES).
      --raw=RAW            Texts ($APP_RAW).
      --head=NAME=VALUE    Headers ($APP_HEAD).
      --tls-key-file=TLS-KEY-FILE
                           A key ($APP_TLS_KEY_FILE).

Server
  --server=here    URL of the server ($APP_SERVER).
`,
		"--help one": `Usage: app one <command>

About one.

Flags:
  -h, --help    Show this help.

Things
  one get    Get it.

Run "app one <command> --help" for more information on a command.
`,
	} {
		line, err := table(&put{}, &get{}).Parse(strings.Fields(words))
		if err != nil || !line.Help {
			t.Fatal(line, err)
		}
		var b strings.Builder
		if err := line.Command.WriteHelp(&b); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("%s: %s", words, diff)
		}
	}
}

// The page has each command once, flags that two have alike once, and nothing that roff would take
// for a request.
func TestManual(t *testing.T) {
	type again struct {
		shared
		Max int `default:"3" help:"At most."`
		Dot int `help:".5 or \\."`
	}
	root := New(&Command{Name: "app", Help: "It does things.\n\n.It is not a request.", Below: []*Command{
		{Name: "put", Target: &put{}, Help: "Put a thing.", Detail: "It stays."}, {Name: "again", Group: "Things", Target: &again{}, Help: "Again."},
	}}, "APP_")
	var b strings.Builder
	if err := root.WriteManual(&b, "app v1"); err != nil {
		t.Fatal(err)
	}
	for text, times := range map[string]int{
		".TH APP 1 \"\" \"app v1\"\n": 1, "\napp \\- It does things\n": 1, ".PP\n\\&.It is not a request.\n": 1,
		".SS app put <name> [<id> ...] [flags]\n.PP\nPut a thing.\n.PP\nIt stays.\n": 1, ".SH THINGS\n.SS app again [flags]\n": 1,
		".TP\n.B <name>\nOf the thing.\n": 1, ".TP\n.B \\-\\-max=3\nAt most ($APP_MAX).\n": 1, "Flags as above: \\-\\-max\n": 1,
		".SH SERVER\n.TP\n.B \\-\\-server=here\n": 1, "\\&.5 or \\e ($APP_DOT).\n": 1,
	} {
		if n := strings.Count(b.String(), text); n != times {
			t.Errorf("%d times %q, want %d, in\n%s", n, text, times, &b)
		}
	}
}
