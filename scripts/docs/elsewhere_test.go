package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// elsewhere are the pages whose programs other tests run, and with them the commands that need what
// a shell here has not. By how such commands begin: the test that tries what they do, and its file.
// All other commands of these pages are run here.
var elsewhere = map[string]map[string]test{
	"docs/clients.md": {
		"git clone https://": packed, // this tree is that clone
		"(cd lapse/clients/typescript && npm ci --ignore-scripts && npm pack --pack-destination": packed,
		"mkdir shop && cd shop && npm init -y && npm install ../lapsehq-lapse-":                  packed,
		"node ":                              packed,
		"pip install ./lapse/clients/python": {"clients/python/tests/test_package.py", "def test_the_package_is_installed"},
		"python3 ":                           {"clients/python/tests/test_docs.py", "def test_getting_started"},
	},
	"docs/install.md": {
		"VERSION=": archive, "NAME=": archive, "curl -fLO ": archive, "sha256sum ": archive, "tar -xzf ": archive, `"$NAME/lapse" --version`: archive,
		"sudo dpkg -i lapse_":                      {"scripts/release/deb_test.go", "func TestDeb("},
		"sudo rpm -i lapse-":                       {"scripts/release/deb_test.go", "func TestRPM("},
		"sudo systemctl ":                          unit,
		"sudo install ":                            unit,
		"go install github.com/":                   {"scripts/release/release_test.go", "func TestGoInstallGivesTheSameBinary("},
		"CGO_ENABLED=0 go install ":                {"scripts/release/release_test.go", "func TestGoInstallGivesTheSameBinary("},
		"npm install ./lapsehq-lapse-":             {"scripts/release/clients_test.go", "func TestClients("},
		"pip install ./lapse-":                     {"scripts/release/clients_test.go", "func TestClients("},
		"brew ":                                    formula,
		"cp lapse.rb ":                             formula,
		"docker load --input ":                     {"scripts/release/image_test.go", "func TestImageIsWhole("},
		"docker run --rm -p ":                      {"scripts/release/image_test.go", "func TestImage("},
		"docker compose up -d":                     {"scripts/release/container_test.go", "func TestCompose("},
		"helm install ":                            {"scripts/release/chart_test.go", "func TestChart("},
		"kubectl ":                                 {"scripts/release/chart_test.go", "func TestChart("},
		"make release":                             {"scripts/release/release_test.go", "func TestMain("},
		"git commit -am ":                          {"scripts/release/release_test.go", "func TestVersionIsTheTag("},
		"for a in nats rabbitmq kafka; do git tag": {"scripts/release/release_test.go", "func TestAdapterFromOutside("},
	},
}

// A test is a part of a file that says that the test is there.
type test struct{ file, text string }

var (
	formula = test{"scripts/release/formula_test.go", "func TestFormula("}
	archive = test{"scripts/release/page_test.go", "func TestInstallPage("}
	unit    = test{"scripts/release/deb_test.go", "func TestUnitIsValid("}
	packed  = test{"clients/typescript/test/docs.test.ts", `"pack", "--pack-destination"`}
)

// Each command of the pages whose programs are run elsewhere is run here, or a test that exists
// tries what it does. A command in a container is run without one.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts ten servers")
	}
	tools := tools(t)
	inside := strings.NewReplacer("docker run --rm lapse:0.1.0 ", "lapse ", "docker compose exec lapse /usr/bin/", "",
		"> tokens.yaml", `> "$HOME/tokens.yaml"`) // not into the tree, where cd leads
	for page, others := range elsewhere {
		used := map[string]bool{}
		for _, b := range blocksOf(page, readPage(t, page)) {
			if b.lang != "" && b.lang != "sh" {
				continue
			}
			if b.lang == "" && !strings.HasPrefix(b.text, "$ ") {
				t.Errorf("%s:%d: a transcript begins with a command", page, b.line)
			}
			var here []command
			for _, c := range commandsOf(b) {
				c.text = inside.Replace(c.text)
				if by := coveredBy(others, c.text); by != "" {
					used[by] = true
				} else {
					here = append(here, c)
				}
			}
			runAlone(t, tools, here)
		}
		for begin, by := range others {
			text, err := os.ReadFile(filepath.Join(root, by.file))
			if err != nil || !strings.Contains(string(text), by.text) {
				t.Errorf("%q of %s: %s has no %s", begin, page, by.file, by.text)
			}
			if !used[begin] {
				t.Errorf("%s has no command that begins with %q: take it off the list", page, begin)
			}
		}
	}
}

// coveredBy returns the entry of a page's list that covers a command.
func coveredBy(others map[string]test, text string) string {
	for begin := range others {
		if strings.HasPrefix(text, begin) {
			return begin
		}
	}
	return ""
}

// runAlone runs commands of one block in a shell of their own, with a server unless they start one.
func runAlone(t *testing.T, tools string, commands []command) {
	t.Helper()
	if len(commands) == 0 {
		return
	}
	s := newShell(t, tools, func(string) {})
	if !slices.ContainsFunc(commands, func(c command) bool { return strings.Contains(c.text, "lapse serve") }) {
		s.run(command{page: commands[0].page, line: commands[0].line, text: "lapse serve", hidden: true})
	}
	for _, c := range commands {
		if strings.HasSuffix(c.text, " --version") {
			c.output = "" // that of the release
		}
		s.run(c)
	}
}
