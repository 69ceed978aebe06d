package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/lapsehq/lapse/tasks"
)

// commands is the grammar that kong reads.
type commands struct {
	Serve   serve     `cmd:"" help:"Serve tasks over HTTP, and keep them on the local disk or in Redis."`
	Bench   benchmark `cmd:"" help:"Measure how fast and how late Lapse is, and what it costs."`
	Token   token     `cmd:"" help:"Make a token for the token file of a server."`
	Version version   `cmd:"" help:"Print the version."`

	Completion completion `cmd:"" help:"Print a script with which a shell completes commands and flags: source <(lapse completion bash)."`

	Schedule   schedule   `cmd:"" group:"Tasks" help:"Schedule a task, or a file of them."`
	Reschedule reschedule `cmd:"" group:"Tasks" help:"Move the deadline of a task, or change its payload."`
	Fire       fire       `cmd:"" group:"Tasks" help:"Make tasks due now."`
	Cancel     cancel     `cmd:"" group:"Tasks" help:"Cancel tasks, or a group of them."`
	Get        getTasks   `cmd:"" group:"Tasks" help:"Show tasks."`
	List       list       `cmd:"" group:"Tasks" help:"List tasks, the soonest first."`

	Reserve reserve `cmd:"" group:"Receivers" help:"Take tasks that are ready: print them, or run a command for each."`
	Ack     ack     `cmd:"" group:"Receivers" help:"Finish deliveries: the tasks are done."`
	Release release `cmd:"" group:"Receivers" help:"Give deliveries back: another attempt follows."`
	Extend  extend  `cmd:"" group:"Receivers" help:"Begin the leases of deliveries again."`
	Bury    bury    `cmd:"" group:"Receivers" help:"Give deliveries up: the tasks are dead."`

	Topics   topics   `cmd:"" group:"Operation" help:"Look at topics and set them up."`
	Nodes    nodes    `cmd:"" group:"Operation" help:"Look at the nodes that share a ledger, and drain one."`
	Dead     dead     `cmd:"" group:"Operation" help:"Look at dead tasks, bring them back or delete them."`
	Stats    stats    `cmd:"" group:"Operation" help:"Show the counts of a server."`
	Forecast forecast `cmd:"" group:"Operation" help:"Count the tasks that fall due, by time."`
	Events   events   `cmd:"" group:"Operation" help:"Tell what happens to tasks, a line each, until interrupted. A server that stops ends it with status 6."`
}

const description = "Lapse makes things happen the moment their time runs out.\n\n" +
	"Exit codes: 0 done; 1 failed; 2 a defect of Lapse (a panic); 3 address or data in use; 4 unknown or finished; " +
	"5 the state forbids it; 6 server unreachable, unavailable or overloaded, or outcome unknown: try again; " +
	"64 wrong arguments or settings."

// streams are where a command writes.
type streams struct{ out, err io.Writer }

// extraWays are the ways of delivery of the calling program.
type extraWays []tasks.Way

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

func parseAndRun(ctx context.Context, args []string, std streams, ways extraWays) error {
	var (
		grammar commands
		bad     faults
		file    = configFile{faults: &bad}
	)
	command, err := parse(args, std, &grammar, &file, &bad)
	if command == nil {
		return err
	}
	command.BindTo(ctx, (*context.Context)(nil))
	err = command.Run(std, &file, &bad, ways)
	if err != nil && slices.ContainsFunc(command.Flags(), func(f *kong.Flag) bool { return f.Name == "json" && f.Target.Bool() }) {
		err = jsonFailure{err}
	}
	return err
}

// parse fills in the grammar. It returns nil, nil if help was asked for and has
// been printed.
func parse(args []string, std streams, grammar *commands, file *configFile, bad *faults) (*kong.Context, error) {
	helped := false
	parser, err := newParser(std, grammar, file, bad, func(int) { helped = true })
	if err != nil {
		return nil, err
	}
	command, err := parser.Parse(reorderArgs(args))
	if helped {
		return nil, nil // kong goes on after the help, and reports other faults
	}
	return command, err
}

func newParser(std streams, grammar *commands, file *configFile, bad *faults, exit func(int)) (*kong.Kong, error) {
	return kong.New(grammar,
		kong.Name("lapse"),
		kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(std.out, std.err),
		kong.Exit(exit),
		kong.DefaultEnvars("LAPSE"),
		kong.Configuration(file.load),
		bad.note(),
	)
}
