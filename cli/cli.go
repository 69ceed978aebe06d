package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/lapsehq/lapse/recovery"
)

// Exit codes, as documented at the package.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitInUse  = 3
)

// commands is the grammar that kong reads.
type commands struct {
	Serve   serve     `cmd:"" help:"Serve tasks over HTTP, and keep them on the local disk or in Redis."`
	Bench   benchmark `cmd:"" help:"Measure how fast and how late Lapse is, and what it costs."`
	Version version   `cmd:"" help:"Print the version."`
}

// streams are where a command writes.
type streams struct{ out, err io.Writer }

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // gives the second signal its default effect: the end
	return run(ctx, args, streams{os.Stdout, os.Stderr})
}

func run(ctx context.Context, args []string, std streams) int {
	err := parseAndRun(ctx, args, std)
	var parse *kong.ParseError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &parse):
		fmt.Fprintf(std.err, "lapse: %v; see lapse serve --help\n", err)
		return exitUsage
	case errors.Is(err, errSettings):
		fmt.Fprintf(std.err, "lapse: %v\n", err)
		return exitUsage
	case errors.Is(err, recovery.ErrHeld), errors.Is(err, recovery.ErrLost), errors.Is(err, syscall.EADDRINUSE):
		fmt.Fprintf(std.err, "lapse: %v\n", err)
		return exitInUse
	default:
		fmt.Fprintf(std.err, "lapse: %v\n", err)
		return exitFailed
	}
}

func parseAndRun(ctx context.Context, args []string, std streams) error {
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
	return command.Run(std, &file, &bad)
}

// parse fills in the grammar. It returns nil, nil if help was asked for and has
// been printed.
func parse(args []string, std streams, grammar *commands, file *configFile, bad *faults) (*kong.Context, error) {
	helped := false
	parser, err := kong.New(grammar,
		kong.Name("lapse"),
		kong.Description("Lapse makes things happen the moment their time runs out."),
		kong.Writers(std.out, std.err),
		kong.Exit(func(int) { helped = true }),
		kong.DefaultEnvars("LAPSE"),
		kong.Configuration(file.load),
		bad.note(),
	)
	if err != nil {
		return nil, err
	}
	command, err := parser.Parse(args)
	if helped {
		return nil, nil // kong goes on after printing it, and finds fault with the rest
	}
	return command, err
}
