package cli

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/cli/internal/commandline"
)

// docs/cli.md is the help of all commands, for people. A flag or an argument that several commands
// have, with the same help, is described once.
func TestCommandsAreDocumented(t *testing.T) {
	leaves := commands(&serve{}).Leaves()
	shared := sharedFlags(leaves)
	var b strings.Builder
	b.WriteString(cliHead)
	common := map[string]bool{}
	var about []*commandline.Param
	group := ""
	for _, leaf := range leaves {
		if name := cmp.Or(leaf.Group, "The server"); name != group {
			group = name
			fmt.Fprintf(&b, "\n## %s\n", group)
		}
		fmt.Fprintf(&b, "\n### `%s`\n\n%s\n", usage(leaf), sentence(leaf.Help, leaf.Detail))
		switch leaf.Name {
		case "serve":
			b.WriteString("\nIts settings are listed by `lapse serve --help`, and with their values by `lapse serve --print-config`.\n")
		case "doctor":
			b.WriteString("\nIts other flags are those of `lapse serve`.\n")
		}
		var rows, others, settings []string
		for _, arg := range leaf.Args {
			if shared[strings.ToUpper(arg.Name)] != argRow(arg) {
				rows = append(rows, argRow(arg))
			}
		}
		for _, f := range leaf.Flags {
			switch {
			case isSetting(leaf, f):
			case leaf.Path() == "lapse topics set" && topicSettings[f.Name]:
				settings = append(settings, flagName(f))
			case f.Group == "Server":
				if !common[f.Name] {
					common[f.Name] = true
					about = append(about, f)
				}
			case shared[f.Name] == flagRow(f):
				others = append(others, "`--"+f.Name+"`")
			default:
				rows = append(rows, flagRow(f))
			}
		}
		if len(rows) > 0 {
			fmt.Fprintf(&b, "\n| | default | |\n| --- | --- | --- |\n%s", strings.Join(rows, ""))
		}
		if len(settings) > 0 {
			fmt.Fprintf(&b, "\nAnd the [settings of a topic](settings.md#a-topic): %s.\n", strings.Join(settings, ", "))
		}
		if len(others) > 0 {
			fmt.Fprintf(&b, "\n[Also](#flags-of-several-commands) %s.\n", strings.Join(others, ", "))
		}
	}
	b.WriteString("\n## Flags of several commands\n\nAnd their arguments.\n\n| | default | |\n| --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		b.WriteString(shared[name])
	}
	b.WriteString("\n## Flags of all commands that call a server\n\nThey may stand before the command, between its words and after it.\n\n| | default | |\n| --- | --- | --- |\n")
	for _, f := range about {
		b.WriteString(flagRow(f))
	}
	generated(t, "../docs/cli.md", b.String())
}

// isSetting reports whether a flag is a setting of a server, which docs/settings.md has.
func isSetting(leaf *commandline.Command, f *commandline.Param) bool {
	return (leaf.Name == "serve" || leaf.Name == "doctor") && !notSettings[f.Name]
}

// topicSettings are the flags of lapse topics set that docs/settings.md explains.
var topicSettings = map[string]bool{
	"max-attempts": true, "max-age": true, "min-backoff": true, "max-backoff": true, "lease": true, "concurrency": true,
	"burst": true, "weight": true, "spread": true, "misfire": true, "dead-retention": true, "keep-finished": true,
	"concurrency-per-group": true, "on-dead-delay": true, "task-delivery": true, "count-crashes": true, "paused": true,
}

// sharedFlags returns the rows of the flags and arguments that several commands have with the same
// help, by their names, those of arguments in capitals: of a name with several such rows, the most
// frequent one.
func sharedFlags(leaves []*commandline.Command) map[string]string {
	times, shared := map[string]int{}, map[string]string{}
	count := func(name, r string) {
		if times[r]++; times[r] >= 2 && times[r] > times[shared[name]] {
			shared[name] = r
		}
	}
	for _, leaf := range leaves {
		for _, f := range leaf.Flags {
			if isSetting(leaf, f) || f.Group == "Server" {
				continue
			}
			count(f.Name, flagRow(f))
		}
		for _, arg := range leaf.Args {
			count(strings.ToUpper(arg.Name), argRow(arg))
		}
	}
	return shared
}

func usage(leaf *commandline.Command) string {
	text := leaf.Path()
	for _, arg := range leaf.Args {
		name := strings.ToUpper(arg.Name)
		if arg.IsList() {
			name += "..."
		}
		if !arg.Required {
			name = "[" + name + "]"
		}
		text += " " + name
	}
	return text
}

func sentence(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "\n\n")
}

func row(name, def, help string) string {
	return fmt.Sprintf("| %s | %s | %s |\n", name, def, strings.ReplaceAll(help, "|", "\\|"))
}

func argRow(arg *commandline.Param) string {
	return row("`"+strings.ToUpper(arg.Name)+"`", "", arg.Help)
}

func flagName(f *commandline.Param) string {
	name := "`--" + f.Name
	if f.Negatable {
		name = "`--[no-]" + f.Name
	}
	if !f.IsBool() {
		name += "=" + placeholder(f)
	}
	return name + "`"
}

func flagRow(f *commandline.Param) string {
	name, def := flagName(f), ""
	if f.Default != "" {
		def = "`" + f.Default + "`"
	}
	if f.Env != "" {
		name += " `$" + f.Env + "`"
	}
	return row(name, def, f.Help)
}

func placeholder(f *commandline.Param) string {
	if f.Placeholder != "" {
		return f.Placeholder
	}
	switch f.Type() {
	case reflect.TypeFor[time.Duration]():
		return "DURATION"
	case reflect.TypeFor[int](), reflect.TypeFor[int64]():
		return "N"
	}
	return "TEXT"
}

const cliHead = `# Command line

This page is generated: ` + "`go test ./cli -run TestCommandsAreDocumented -update`" + `. The same is told by
` + "`lapse --help`" + ` and ` + "`lapse COMMAND --help`" + `.

An argument or a flag whose text is empty, as of ` + "`--group \"$CUSTOMER\"`" + ` without a value, is refused with 64 unless its help
gives the empty text a meaning.

Each flag with a variable may be set by it instead; a flag wins. ` + "`lapse serve`" + ` also reads a YAML file, where the flag
` + "`--max-pending`" + ` is ` + "`max_pending`" + `; the environment wins over it. Durations are those of Go, also with d for 24 hours:
` + "`90s`, `30m`, `1d12h`" + `.

## Output

Without ` + "`--json`" + `, output is for people, and may change. With it, standard output carries the very answer of the
[HTTP API](http.md): one document, or one a line for lists, and nothing where the API answers nothing. Failures then are
one JSON object on standard error, ` + "`{\"error\":..., \"exit\":4, \"problem\":{...}}`" + `, where problem is the API's, if it has
answered.

## Exit codes

| code | means |
| --- | --- |
| 0 | done; a server: stopped as asked |
| 1 | failed: the message says why |
| 2 | a defect of Lapse: it has panicked, standard error tells where |
| 3 | the address, the data directory, the file of an export or the node's name is in use, another server has taken the tasks over, or a newer version has written them |
| 4 | the task is unknown or finished; the topic, the group or the node is unknown; nothing was found to import |
| 5 | the state forbids it: the task is being delivered or dead, the id is taken, the receipt is stale, the settings have changed |
| 6 | the server cannot be reached, is unavailable or overloaded, or the outcome is unknown: try again |
| 7 | not allowed: the token is missing or unknown, or does not open this |
| 64 | an argument, a setting or a field is wrong; nothing was changed |
| 130 | interrupted before it was done; what was done by then stays done |

Of several failures, as of ` + "`lapse cancel a b c`" + `, the first that occurs in the order 64, 130, 7, 6, 5, 4, 1 counts.
` + "`lapse schedule`" + ` ends with 4 if its id is that of the same task, which is finished and kept, and with 5 if that is dead; so with --batch.
` + "`lapse dead requeue`" + ` ends with 5 if some of the ids are not among the dead of the topic; the others are requeued. Calls that can be
repeated without harm have been repeated for some seconds before 6.

## Names that do not exist

A command that is given a topic without settings and tasks, or a group of which no task waits, ends with 4, creates
nothing, and says which topics have such a name:

- ` + "`lapse topics pause`" + ` and ` + "`set`" + ` create a topic with ` + "`--create`" + `. ` + "`set`" + ` needs it only where the new name, or
  that of ` + "`--on-dead`" + `, is almost that of another topic.
- ` + "`lapse import redis`, `asynq` and `beanstalkd`" + ` create the topic of ` + "`--topic`" + `, and need ` + "`--create`" + ` where its
  name is almost that of another one.
- ` + "`lapse schedule`" + ` creates a topic by its first task. On a terminal it says so if the name is almost that of another one.
- ` + "`lapse reserve --follow`" + ` and ` + "`lapse events`" + ` say on standard error that they wait for the first task.
- A token that may not read the topic is not asked about it; the command then does as it was told.

## Receiving in a shell

` + "`lapse reserve TOPIC --follow --exec COMMAND`" + ` is a receiver: it runs the command with ` + "`sh -c`" + ` for each task, ` + "`--max`" + ` at once,
with the payload on standard input, and ` + "`LAPSE_TASK_ID`, `LAPSE_TASK_TOPIC`, `LAPSE_TASK_ATTEMPT`, `LAPSE_TASK_DUE_AT`,\n`LAPSE_TASK_GROUP` and `LAPSE_TASK_HEADERS`" + ` (JSON) in the environment. Exit code 0 acknowledges the task, any other
releases it, and it comes again after the topic's backoff. The lease is extended while the command runs; if it is lost all the same, the command
is killed. The first SIGTERM or SIGINT ends the asking, gives back
uncounted what has not begun, and waits for what runs; the second one ends lapse.

<!-- run: lapse serve -->
` + "```" + `
$ lapse schedule order.unpaid --id order-42 --delay 2s --payload '{"order":42}'
order-42 is scheduled: due in 2s (2026-11-20 14:06:41.249 +0000)
$ lapse reserve order.unpaid --follow --max 8 --exec 'echo "cancel $LAPSE_TASK_ID: $(cat)"'
cancel order-42: {"order":42}
` + "```" + `
`
