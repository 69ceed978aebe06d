package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/cli/internal/commandline"
)

// dev is the command that runs a server to try Lapse with: serve with the defaults of dev's flags
// and of trial. Its flags are flags of serve by their names.
type dev struct {
	Listen       string `default:"127.0.0.1:7480" help:"Address to serve on, host:port. Without this flag, a free port if that one is taken."`
	RedisListen  string `default:"127.0.0.1:7479" help:"Address for clients of Redis, host:port, where a key with a TTL is a task. Without this flag, a free port if that one is taken."`
	HealthListen string `placeholder:"ADDR" help:"Address of a second listener, host:port, that serves /healthz, /readyz and /metrics alone. Default: none."`
	Data         string `env:"-" placeholder:"DIR" help:"Keep tasks in this directory. Default: in memory, until the server ends."`
	Insecure     bool   `help:"Serve beyond this machine, although every caller that can connect may do anything: in a container, say."`
	LogLevel     string `default:"warn" help:"debug, info, warn or error."`

	server *serve
}

const devDetail = "It is lapse serve without tokens, open to this machine alone, with a port for clients of Redis, " +
	"and with its tasks in memory. It reads none of the settings of lapse serve but those below."

// trial are further defaults of serve: what a server for one person may take.
var trial = map[string]string{"max-bytes": "1073741824", "max-pending": "2000000"}

// Run runs the server. Errors: those of serve.
func (d *dev) Run(ctx context.Context, std streams, bad *faults) error {
	serve := d.server.commands.Named("serve")
	for _, f := range d.server.commands.Named("dev").Flags {
		if text := cmp.Or(f.Given(), f.Default); text != "" {
			serve.Flag(f.Name).Give("lapse dev", text)
		}
		if f.Source == "" && f.Default != "" {
			d.server.orFree = append(d.server.orFree, f.Name)
		}
	}
	for name, text := range trial {
		serve.Flag(name).Give("lapse dev", text)
	}
	if err := fillIn(&commandline.Line{Command: serve}, bad); err != nil {
		return err
	}
	d.server.memory, d.server.trial = d.Data == "", true
	return d.server.Run(ctx, std, bad)
}

// since says why an address is not the one that was wanted, "" if it is.
func (s *serve) since(setting, wanted string, got net.Addr) string {
	if !slices.Contains(s.orFree, setting) || got.String() == wanted {
		return ""
	}
	return fmt.Sprintf(", since %s is taken", wanted)
}

// announceTrial says what else to try on a server that lapse dev has started.
func announceTrial(w io.Writer, url, redis string) {
	client := "redis-cli -u " + redis
	if path, is := strings.CutPrefix(redis, unixScheme); is {
		client = "redis-cli -s " + path
	}
	fmt.Fprintf(w, "     curl %s/v1/topics/hello/reserve --json '{\"wait\":\"20s\"}'\n", url)
	fmt.Fprintf(w, "or:  %s set hello world ex 3\n     %[1]s subscribe __keyevent@0__:expired\n", client)
	if url != "http://127.0.0.1:7480" {
		fmt.Fprintf(w, "or:  export LAPSE_SERVER=%s, for the other commands of lapse\n", url)
	}
	fmt.Fprintf(w, "page: %s/\n", url)
}
