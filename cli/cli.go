package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"syscall"

	"github.com/lapsehq/lapse/cli/internal/commandline"
	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/internal/stamp"
	"github.com/lapsehq/lapse/tasks"
)

// A runner is a command. Its exported fields are its arguments and flags. A command
// that calls a server is a caller instead.
type runner interface {
	Run(ctx context.Context, std streams, bad *faults) error
}

// commands is the table of all commands. Its first one runs the server.
func commands(server *serve) *commandline.Command {
	complete, page, trial := &completion{}, &manual{}, &dev{server: server}
	all := commandline.New(&commandline.Command{Name: "lapse", Help: description, Below: []*commandline.Command{
		{Name: "serve", Target: server, Help: "Serve tasks over HTTP, and keep them on the local disk or in Redis."},
		{Name: "dev", Target: trial, Help: "Serve on this machine alone, to try Lapse and to develop with it.", Detail: devDetail},
		{Name: "doctor", Target: &doctor{}, Help: "Look whether this machine and its Redis are fit for a server with these settings, and say what to do where they are not.",
			Detail: doctorDetail},
		{Name: "bench", Target: &benchmark{}, Help: "Measure how fast and how late Lapse is, and what it costs.",
			Detail: benchDetail},
		{Name: "token", Target: &token{}, Help: "Make a token for the token file of a server."},
		{Name: "version", Target: &version{}, Help: "Print the version."},
		{Name: "completion", Target: complete, Help: "Print a script with which a shell completes commands and flags: source <(lapse completion bash)."},
		{Name: "man", Target: page, Help: "Print the manual page of all commands: lapse man | man -l -."},
		{Name: "schedule", Group: "Tasks", Target: &schedule{}, Help: "Schedule a task, or a file of them."},
		{Name: "reschedule", Group: "Tasks", Target: &reschedule{}, Help: "Move the deadline of a task, or change its payload; or move all tasks that flags select."},
		{Name: "fire", Group: "Tasks", Target: &withTasks{verb: &fireTasks}, Help: "Make tasks due now: some, or all that flags select."},
		{Name: "hold", Group: "Tasks", Target: &withTasks{verb: &holdTasks}, Help: "Hold the countdown of tasks: some, or all that flags select."},
		{Name: "resume", Group: "Tasks", Target: &withTasks{verb: &resumeTasks}, Help: "Let held countdowns go on: of some tasks, or of all that flags select."},
		{Name: "cancel", Group: "Tasks", Target: &cancel{}, Help: "Cancel tasks: some, a group of them, or all that flags select."},
		{Name: "get", Group: "Tasks", Target: &getTasks{}, Help: "Show tasks."},
		{Name: "list", Group: "Tasks", Target: &list{}, Help: "List tasks, the soonest first."},
		{Name: "find", Group: "Tasks", Target: &find{}, Help: "Find tasks in all states, groups and topics by a part of their names."},
		{Name: "reserve", Group: "Receivers", Target: &reserve{}, Help: "Take tasks that are ready: print them, or run a command for each."},
		{Name: "ack", Group: "Receivers", Target: &settle{done: "acknowledged", do: (*client.Client).Ack}, Help: "Finish deliveries: the tasks are done."},
		{Name: "return", Group: "Receivers", Target: &settle{done: "given back", do: (*client.Client).Return}, Help: "Give back deliveries that were not begun: the attempt does not count."},
		{Name: "release", Group: "Receivers", Target: &release{}, Help: "End deliveries without success: another attempt follows."},
		{Name: "extend", Group: "Receivers", Target: &extend{}, Help: "Begin the leases of deliveries again."},
		{Name: "bury", Group: "Receivers", Target: &bury{}, Help: "Give deliveries up: the tasks are dead."},
		{Name: "topics", Group: "Operation", Help: "Look at topics and set them up.", Below: []*commandline.Command{
			{Name: "list", Target: &topicsList{}, Help: "List the topics, with counts."},
			{Name: "get", Target: &topicsGet{}, Help: "Show the settings and counts of a topic."},
			{Name: "set", Target: &topicsSet{}, Help: "Change settings of a topic; those that are not given stay as they are."},
			{Name: "pause", Target: &topicsPause{}, Help: "Stop the delivery of topics' tasks. They are accepted, and wait."},
			{Name: "resume", Target: &topicsResume{}, Help: "Deliver topics' tasks again."},
			{Name: "delete", Target: &topicsDelete{}, Help: "Forget the settings of topics that have no tasks."},
			{Name: "purge", Target: &topicsPurge{}, Help: "Cancel all pending and ready tasks of topics; order.* purges all topics whose names begin so."},
		}},
		{Name: "nodes", Group: "Operation", Help: "Look at the nodes that share a ledger, and drain one.", Default: "list", Below: []*commandline.Command{
			{Name: "list", Target: &nodesList{}, Help: "List the nodes that share the server's ledger, as it last saw them."},
			{Name: "show", Target: &nodesShow{}, Help: "Show a node, and the keys under which Redis has its tasks."},
			{Name: "give-up-spools", Target: &nodesGiveUpSpools{}, Help: "Say that the missing spools of a node will not come back. Their tasks count as lost."},
			{Name: "drain", Target: &nodesDrain{}, Help: "Have a node hand what it holds over to the others, and end."},
		}},
		{Name: "dead", Group: "Operation", Help: "Look at dead tasks, bring them back or delete them.", Below: []*commandline.Command{
			{Name: "list", Target: &deadList{}, Help: "List the dead tasks of a topic, the longest dead first."},
			{Name: "reasons", Target: &deadReasons{}, Help: "Say why tasks are dead: count them by topic, reason and error."},
			{Name: "requeue", Target: &deadRequeue{}, Help: "Bring dead tasks back, some or all that flags select, with all their attempts: due at once, or when you say."},
			{Name: "redrive", Target: &deadRedrive{}, Help: "Bring dead tasks of one topic or of all back, so many a second. A topic whose first ones fail again is left."},
			{Name: "delete", Target: &deadDelete{}, Help: "Delete dead tasks: some, or all that flags select."},
		}},
		{Name: "backup", Group: "Operation", Target: &backup{}, Help: "Back the embedded ledger of a server up, while it runs.", Detail: backupDetail},
		{Name: "restore", Group: "Operation", Target: &restore{}, Help: "Make a data directory of a backup.", Detail: restoreDetail},
		{Name: "export", Group: "Operation", Target: &export{}, Help: "Export everything that a server has, while it runs.", Detail: exportDetail},
		{Name: "import", Group: "Operation", Help: "Bring in an export, or what another system has scheduled.", Below: append([]*commandline.Command{
			{Name: "file", Target: &importFile{}, Help: "Import what lapse export has written.", Detail: importFileDetail},
		}, importCommands()...)},
		{Name: "stats", Group: "Operation", Target: &stats{}, Help: "Show the counts of a server."},
		{Name: "health", Group: "Operation", Target: &health{}, Help: "Ask a server whether it is alive, and with --ready whether it is ready. The status is 6 if it is not."},
		{Name: "top", Group: "Operation", Target: &top{}, Help: "Watch the topics of a fleet, the worst first, and pause them.", Detail: topDetail},
		{Name: "wave", Group: "Operation", Target: &wave{}, Help: "Say how far the tasks are that were due in a span."},
		{Name: "forecast", Group: "Operation", Target: &forecast{}, Help: "Count the tasks that fall due, by time."},
		{Name: "audit", Group: "Operation", Help: "Tell who did what, and take an act back.", Default: "list", Below: []*commandline.Command{
			{Name: "list", Target: &audit{}, Help: "Tell who did what with many tasks, with topics and nodes, the latest first."},
			{Name: "undo", Target: &auditUndo{}, Help: "Take back a pause, a resume, a change of settings, or what an operator did with one task, unless something has changed since."},
		}},
		{Name: "events", Group: "Operation", Target: &events{}, Help: "Tell what happens to tasks, a line each, until interrupted. A server that stops ends it with status 6."},
	}}, "LAPSE_")
	complete.commands, page.commands, server.commands = all, all, all
	return all
}

const description = "Lapse makes things happen the moment their time runs out.\n\n" +
	"Exit codes: 0 done; 1 failed; 2 a defect of Lapse (a panic); 3 address or data in use; 4 unknown or finished; " +
	"5 the state forbids it; 6 server unreachable, unavailable or overloaded, or outcome unknown: try again; " +
	"7 not allowed; 64 wrong arguments or settings; 130 interrupted."

// streams are where a command writes.
type streams struct{ out, err io.Writer }

// Main runs the command line and returns the exit code. Topics of a server may choose the passed
// ways of delivery, besides those of Lapse: a program of a few lines is a Lapse with a way of its
// own. The caller closes the ways: when Main has returned they are no longer in use.
func Main(args []string, ways ...tasks.Way) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // gives the second signal its default effect: the end
	return run(ctx, args, streams{os.Stdout, os.Stderr}, ways...)
}

func run(ctx context.Context, args []string, std streams, ways ...tasks.Way) int {
	if len(args) == 0 {
		_ = parseAndRun(ctx, []string{"--help"}, streams{std.err, std.err}, ways)
		return exitUsage
	}
	err := parseAndRun(ctx, args, std, ways)
	if err != nil {
		printError(std.err, err)
	}
	return exitOf(err)
}

func parseAndRun(ctx context.Context, args []string, std streams, ways []tasks.Way) error {
	var bad faults
	server := &serve{file: configFile{faults: &bad}, extra: ways}
	command, err := parse(args, std, server, &bad)
	if command == nil || err != nil {
		return err
	}
	switch c := command.Target.(type) {
	case runner:
		err = c.Run(ctx, std, &bad)
	case caller:
		c.check(&bad)
		var s *session
		if s, err = c.connect(std, &bad); err == nil {
			err = c.call(ctx, s)
		}
	}
	if f := command.Flag("json"); err != nil && f != nil && f.Value() == true {
		err = jsonFailure{err}
	}
	return err
}

// parse reads a command line, and what the environment and the file of --config add to it. Numbers,
// durations and levels that are wrong are noted in bad. It returns nil, nil if help was asked for
// and has been printed.
func parse(args []string, std streams, server *serve, bad *faults) (*commandline.Command, error) {
	line, err := commands(server).Parse(reorderArgs(args))
	switch {
	case err != nil:
		return nil, err
	case line.Help:
		return nil, line.Command.WriteHelp(std.out)
	}
	command := line.Command
	for _, f := range command.Flags {
		if text, set := os.LookupEnv(f.Env); set && f.Env != "" {
			f.Give("environment "+f.Env, text)
		}
	}
	if configured, is := command.Target.(interface{ configFile() *configFile }); is {
		file := configured.configFile()
		file.faults = bad
		if err := file.read(command); err != nil {
			return nil, &commandline.UsageError{Command: command, Err: err}
		}
	}
	return command, fillIn(line, bad)
}

// fillIn sets the fields of a command. Numbers, durations and levels that are wrong are noted in
// bad.
func fillIn(line *commandline.Line, bad *faults) error {
	return line.Fill(func(p *commandline.Param, err error) bool {
		switch p.Type().Kind() {
		case reflect.Int, reflect.Int64: // numbers, durations and levels
			bad.add("%s: %w", p.Name, err)
			return true
		}
		return false
	})
}

type version struct{}

// Run prints one line: the module's version, its commit and the Go version.
func (version) Run(_ context.Context, std streams, _ *faults) error {
	_, err := fmt.Fprintln(std.out, "lapse", buildVersion())
	return err
}

// manual is the command that prints the manual page.
type manual struct{ commands *commandline.Command }

// Run prints the page. Error: that of standard output.
func (m *manual) Run(_ context.Context, std streams, _ *faults) error {
	release, _ := stamp.Read()
	return m.commands.WriteManual(std.out, "lapse "+release)
}

// buildVersion is the version that the Go tool has stamped into the binary: a version for `go
// install module@version`, a commit for a build in a clone.
func buildVersion() string {
	text, revision := stamp.Read()
	if text == "(devel)" && revision != "" {
		text += " " + revision
	}
	return text + " " + runtime.Version()
}
