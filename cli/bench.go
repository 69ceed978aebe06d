package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/bench"
)

// benchmark is the command that measures. From the environment it takes only the token, so that it
// does not put a LAPSE_REDIS that is meant for the server under load by accident.
type benchmark struct {
	Workload  []string `env:"-" placeholder:"NAME,..." help:"single, batch, burst, steady, memory, restart. Default: all that are possible."`
	Ledger    []string `env:"-" placeholder:"NAME,..." help:"memory, disk, redis. Default: memory and disk, and redis if there is a URL."`
	Redis     string   `env:"-" placeholder:"URL" help:"Redis to measure on, under keys of its own, which are removed afterwards."`
	Dir       string   `env:"-" default:"." help:"Where the temporary directories of the ledger disk are made. A directory in memory would flatter it."`
	Server    string   `env:"-" placeholder:"URL" help:"Measure a running server, with tasks of a topic of their own, which are cancelled afterwards."`
	TokenFrom string   `env:"-" placeholder:"FILE" help:"File that holds the server's access token. Default: the token in $LAPSE_TOKEN, if it is set."`
	HTTP      bool     `env:"-" name:"http" help:"Put a server before each ledger, and measure over HTTP."`

	Tasks    int           `env:"-" placeholder:"N" help:"Tasks of each workload but steady. Default: 100,000 to 1,000,000."`
	Rate     []int         `env:"-" placeholder:"N,..." help:"Tasks a second of steady. Default: 1000,10000,100000."`
	Duration time.Duration `env:"-" default:"10s" help:"How long steady lasts, and the idleness of memory."`
	Callers  int           `env:"-" default:"64" help:"Callers of single."`
	Batch    int           `env:"-" default:"1000" help:"Tasks a request."`
	Payload  int           `env:"-" default:"200" help:"Bytes of a payload."`

	JSON bool `env:"-" name:"json" help:"Print one JSON document instead of tables."`
}

// benchDetail says more than fits on a line.
const benchDetail = "Without --server or --http it measures Lapse embedded in this process. It ends with status 1" +
	" if a task was early, lost, or delivered again without a reason. See docs/comparison.md."

// Run measures. It prints the measured figures also when it could not go on.
func (b *benchmark) Run(ctx context.Context, std streams, bad *faults) error {
	o := bench.Options{
		Workloads: b.Workload, Ledgers: b.Ledger, Redis: b.Redis, Dir: b.Dir, Server: b.Server, HTTP: b.HTTP,
		Tasks: b.Tasks, Rates: b.Rate, Duration: b.Duration, Callers: b.Callers, Batch: b.Batch, Payload: b.Payload,
		Version: buildVersion(), Progress: std.err,
	}
	switch {
	case b.Server != "":
		o.Token = tokenFrom(b.TokenFrom, bad)
	case b.TokenFrom != "":
		bad.add("token-from: goes with server only")
	}
	bad.include(o.Validate())
	if err := bad.err(); err != nil {
		return err
	}
	redis.SetLogger(redisLog{slog.New(slog.DiscardHandler)}) // the error of the run has it
	report, err := bench.Run(ctx, o)
	if report != nil {
		err = errors.Join(err, report.Err())
		if b.JSON {
			encoder := json.NewEncoder(std.out)
			encoder.SetIndent("", "  ")
			err = errors.Join(err, encoder.Encode(report))
		} else {
			report.Print(std.out)
		}
	}
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}
