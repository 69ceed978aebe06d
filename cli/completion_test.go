package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// completionOf returns the script for a shell.
func completionOf(t *testing.T, shell string) string {
	t.Helper()
	var out, errs screen
	if code := run(t.Context(), []string{"completion", shell}, streams{&out, &errs}); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	return out.String()
}

// Each script is one that its shell can read, and has each command and each flag.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := completionOf(t, shell)
		for _, command := range commands(&serve{}).Leaves() {
			names := strings.Fields(command.Path())
			for _, f := range command.Flags {
				if shell == "fish" {
					names = append(names, "-l "+f.Name)
				} else {
					names = append(names, "--"+f.Name)
				}
			}
			for _, name := range names {
				if !strings.Contains(script, name) {
					t.Errorf("%s: %q is missing", shell, name)
				}
			}
		}
		if path, err := exec.LookPath(shell); err == nil {
			check := exec.CommandContext(t.Context(), path, "-n")
			check.Stdin = strings.NewReader(script)
			if said, err := check.CombinedOutput(); err != nil || len(said) > 0 {
				t.Errorf("%s -n: %v\n%s", shell, err, said)
			}
		}
	}
}

// zsh finds the script by itself as a file of fpath, which runs it as a function at the first
// completion.
func TestCompletionOfZshInPath(t *testing.T) {
	script := completionOf(t, "zsh")
	if !strings.HasPrefix(script, "#compdef lapse\n") {
		t.Errorf("it begins with %q", script[:40])
	}
	zsh, err := exec.LookPath("zsh")
	if err != nil {
		t.Skip("there is no zsh")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "_lapse"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	// Outside of a completion, the function that answers one can only be recorded.
	const first = `fpath=($1 $fpath); autoload -U compinit && compinit -u -D; print $_comps[lapse]
_bash_complete() { print -r -- $* }; autoload -U +X bashcompinit; bashcompinit() {}; complete() { _comps[lapse]=bash }
_lapse; print $_comps[lapse]`
	said, err := exec.CommandContext(t.Context(), zsh, "-fc", first, "zsh", dir).CombinedOutput()
	if want := "_lapse\n-o default -F _lapse\nbash\n"; err != nil || string(said) != want {
		t.Errorf("%v: %s, want %s", err, said, want)
	}
}

// The last word of a line is the one that bash completes.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	file := filepath.Join(t.TempDir(), "lapse.bash")
	if err := os.WriteFile(file, []byte(completionOf(t, "bash")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line []string
		want string
	}{
		{[]string{"to"}, "token topics top"},
		{[]string{"topics", "p"}, "pause purge"},
		{[]string{"topics", "set", "--mis"}, "--misfire"},
		{[]string{"topics", "set", "--no-p"}, "--no-paused"},
		{[]string{"set", "--mis"}, ""}, // no command of its own
		{[]string{"help", "topics", "s"}, "set"},
		{[]string{"--server", "http://127.0.0.1:1", "topics", "l"}, "list"},
		{[]string{"--se"}, "--server"},
		{[]string{"topics", "--j"}, "--json"},
		{[]string{"topics", "--server", "http://127.0.0.1:1", "l"}, "list"},
		{[]string{"get", "topics", "p"}, ""}, // an id like a command
		{[]string{"get", "-"}, "--help -h --server --token-from --ca-file --timeout --json"},
		{[]string{"completion", ""}, "bash zsh fish"},
	} {
		script := `source "$1"; shift; COMP_WORDS=(lapse "$@"); COMP_CWORD=$#; _lapse; echo "${COMPREPLY[*]}"`
		said, err := exec.CommandContext(t.Context(), bash, append([]string{"-uc", script, "bash", file}, c.line...)...).CombinedOutput()
		if got := strings.TrimSpace(string(said)); err != nil || got != c.want {
			t.Errorf("lapse %s: %q, want %q (%v)", strings.Join(c.line, " "), got, c.want, err)
		}
	}
}
