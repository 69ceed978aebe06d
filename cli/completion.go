package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/cli/internal/commandline"
)

// completion is the command that prints a script with which a shell completes commands and
// flags. The script is made from the grammar and stands alone: a shell that completes a line
// does not start Lapse.
type completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`

	commands *commandline.Command
}

// Run prints the script. Error: another shell, or that of standard output.
func (c *completion) Run(_ context.Context, std streams, bad *faults) error {
	if err := bad.err(); err != nil {
		return err
	}
	all := completedFrom(c.commands, completed{})
	all[0].names = append(all[0].names, candidate{name: "help", help: "Show help of a command."})
	var script strings.Builder
	if c.Shell == "fish" {
		writeFish(&script, all)
	} else {
		writeBash(&script, all, c.Shell == "zsh")
	}
	_, err := io.WriteString(std.out, script.String())
	return err
}

// A completed is a command as shells complete it.
type completed struct {
	parent string      // the command above it: "topics" for "topics set"
	name   string      // "" for lapse itself
	names  []candidate // what may follow it: commands, or the values of its first argument
	flags  []candidate
}

// path is the command as it is typed, without lapse.
func (c *completed) path() string { return strings.TrimSpace(c.parent + " " + c.name) }

// A candidate is a command, a value or a flag that may stand at some place.
type candidate struct {
	name  string // without hyphens
	short rune   // 0: none
	help  string
	value bool // a value follows the flag
}

// completedFrom fills in a command and returns it with all below it.
func completedFrom(command *commandline.Command, c completed) []completed {
	if len(command.Args) > 0 {
		for _, v := range command.Args[0].Enum {
			c.names = append(c.names, candidate{name: v})
		}
	}
	c.flags = []candidate{{name: "help", short: 'h', help: "Show help."}}
	flags := command.Flags
	if command.Target == nil {
		flags = serverFlagsBelow(command)
	}
	for _, f := range flags {
		c.flags = append(c.flags, candidate{name: f.Name, help: f.Help, value: !f.IsBool()})
		if f.Negatable {
			c.flags = append(c.flags, candidate{name: "no-" + f.Name, help: f.Help})
		}
	}
	var below []completed
	for _, child := range command.Below {
		c.names = append(c.names, candidate{name: child.Name, help: child.Help})
		below = append(below, completedFrom(child, completed{parent: c.path(), name: child.Name})...)
	}
	return append([]completed{c}, below...)
}

// serverFlagsBelow are the flags of a server, which may stand before a command that has them.
func serverFlagsBelow(command *commandline.Command) (flags []*commandline.Param) {
	for _, leaf := range command.Leaves() {
		for _, f := range leaf.Flags {
			if f.Group == "Server" && !slices.ContainsFunc(flags, func(g *commandline.Param) bool { return g.Name == f.Name }) {
				flags = append(flags, f)
			}
		}
	}
	return flags
}

// writeBash writes a script for bash, or for zsh, which runs the same function through its
// bashcompinit. A word that is neither a command here nor a flag, such as the value of a flag, is
// skipped.
func writeBash(w *strings.Builder, all []completed, zsh bool) {
	shell := "bash"
	if zsh {
		shell = "zsh"
	}
	if zsh {
		w.WriteString("#compdef lapse\n")
	}
	fmt.Fprintf(w, "# Completion of lapse in %s: source <(lapse completion %[1]s)\n", shell)
	if zsh {
		w.WriteString("(( $+functions[compdef] )) || { autoload -U compinit && compinit; }\n")
		w.WriteString("autoload -U +X bashcompinit && bashcompinit\n")
	}
	var steps, cases []string
	for _, c := range all {
		if c.name != "" {
			steps = append(steps, "'"+c.parent+" "+c.name+"'")
		}
		names, flags := make([]string, len(c.names)), make([]string, 0, len(c.flags))
		for i, n := range c.names {
			names[i] = n.name
		}
		for _, f := range c.flags {
			flags = append(flags, "--"+f.name)
			if f.short != 0 {
				flags = append(flags, "-"+string(f.short))
			}
		}
		cases = append(cases, fmt.Sprintf("    '%s') names='%s' flags='%s' ;;", c.path(), strings.Join(names, " "), strings.Join(flags, " ")))
	}
	fmt.Fprintf(w, `_lapse() {
    local i command='' names='' flags='' current=${COMP_WORDS[COMP_CWORD]}
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$command ${COMP_WORDS[i]}" in
        %s) command="${command:+$command }${COMP_WORDS[i]}" ;;
        esac
    done
    case "$command" in
%s
    esac
    if [[ $current == -* ]]; then names=$flags; fi
    COMPREPLY=($(compgen -W "$names" -- "$current"))
}
complete -o default -F _lapse lapse
`, strings.Join(steps, "|"), strings.Join(cases, "\n"))
	if zsh {
		// A file of fpath is run by the first completion, which it must answer.
		w.WriteString("if [[ ${funcstack[1]} == _lapse ]]; then _bash_complete -o default -F _lapse; fi\n")
	}
}

// writeFish writes a script for fish.
func writeFish(w *strings.Builder, all []completed) {
	var steps []string
	for _, c := range all[1:] {
		steps = append(steps, "'"+c.parent+" "+c.name+"'")
	}
	fmt.Fprintf(w, `# Completion of lapse in fish: lapse completion fish | source
function __lapse_at
    set -l at ''
    for word in (commandline -opc)
        switch "$at $word"
            case %s
                set at (string trim "$at $word")
        end
    end
    test "$at" = "$argv"
end
`, strings.Join(steps, " "))
	for _, c := range all {
		at := fmt.Sprintf("complete -c lapse -n '%s'", strings.TrimSpace("__lapse_at "+c.path()))
		for _, n := range c.names {
			fmt.Fprintf(w, "%s -f -a %s%s\n", at, n.name, described(n))
		}
		for _, f := range c.flags {
			fmt.Fprintf(w, "%s -l %s", at, f.name)
			if f.short != 0 {
				fmt.Fprintf(w, " -s %c", f.short)
			}
			if f.value {
				w.WriteString(" -r")
			}
			w.WriteString(described(f) + "\n")
		}
	}
}

// described returns the help of a candidate as an argument for fish, whose single quotes know two
// escapes.
func described(c candidate) string {
	if c.help == "" {
		return ""
	}
	return " -d '" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(c.help) + "'"
}
