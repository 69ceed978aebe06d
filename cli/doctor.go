package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/cli/bench"
	look "github.com/lapsehq/lapse/cli/internal/doctor"
	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/internal/checkup"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/tasks"
)

// doctor is the command that looks at what a server with its settings would depend on.
type doctor struct {
	settings
	JSON bool `name:"json" env:"-" help:"Print one JSON object a line for each finding."`

	file configFile
}

const doctorDetail = "It takes the flags, variables and file of lapse serve, and may run beside a server. It changes nothing: a file of " +
	"its own in the data directory and keys of its own under the prefix in Redis are deleted again. A server that answers at the " +
	"address of listen is asked what falls due in the next day, with the token in $LAPSE_TOKEN. It ends with status 1 if a server " +
	"would not start, or could lose tasks."

// errUnfit is returned if a finding says that a server would not start, or could lose tasks.
var errUnfit = errors.New("not fit for this server")

func (d *doctor) configFile() *configFile { return &d.file }

// Run looks at everything, and prints what it has found.
func (d *doctor) Run(ctx context.Context, std streams, bad *faults) error {
	redisTo(slog.New(slog.DiscardHandler))
	findings := d.settingsOf(bad)
	findings = append(findings, look.Files(d.connections()), look.Memory(d.MaxBytes, memoryHere()), look.Clock(), look.Address("listen", d.Listen))
	if d.HealthListen != "" {
		findings = append(findings, look.Address("health-listen", d.HealthListen))
	}
	if d.RedisListen != "" {
		findings = append(findings, look.RedisAddress("redis-listen", network(d.RedisListen), addressOf(d.RedisListen), d.redisIsOpen() && d.TokenFile == ""))
	}
	if d.Redis == "" {
		findings = append(findings, look.Disk("data", cmp.Or(d.Data, defaultData))...)
	}
	if d.Spool != "" {
		findings = append(findings, look.Disk("spool", d.Spool)...)
	}
	findings = append(findings, d.files()...)
	if d.Redis != "" {
		found, err := redisledger.Inspect(ctx, d.redisToInspect())
		if err == nil { // what is wrong with the options stands among the settings
			findings = append(findings, found...)
			findings = append(findings, d.clocks(ctx)...)
		}
	}
	findings = append(findings, d.ahead(ctx)...)
	if err := d.print(std.out, findings); err != nil {
		return err
	}
	if n := verdicts(findings, checkup.Fail); n > 0 {
		return fmt.Errorf("%w: %s", errUnfit, counted(n, "finding fails", "findings fail"))
	}
	return nil
}

// clocks compares the clock of this machine with those of the nodes that run.
func (d *doctor) clocks(ctx context.Context) (findings []checkup.Finding) {
	server, nodes, err := redisledger.InspectNodes(ctx, d.redisToInspect())
	if err != nil {
		return nil // the findings about Redis tell why
	}
	own := tasks.ClockReading{Ahead: -server.ClockAhead, Error: server.ClockError}
	for i := range nodes {
		var status struct {
			Clock *tasks.ClockReading `json:"clock"`
		}
		if json.Unmarshal(nodes[i].LastStatus, &status) != nil || status.Clock == nil {
			continue
		}
		f := checkup.Good("clock of node "+nodes[i].Name, "in step with this machine's")
		if offset := own.Compare(nodes[i].Name, status.Clock, tasks.ClockOffset{}); offset.Far {
			f.Verdict, f.Found = checkup.Warn, fmt.Sprintf("%v ahead of this machine's", offset.Ahead.Round(time.Millisecond))
			f.Do = "run NTP on both machines: tasks are due by the clock of the node that owns them"
		}
		findings = append(findings, f)
	}
	return findings
}

// ahead asks the server that runs with these settings, if one does, whether what falls due in the
// next day will be delivered in time.
func (d *doctor) ahead(ctx context.Context) []checkup.Finding {
	const subject, within = "next day", 5 * time.Second
	addr, err := net.ResolveTCPAddr("tcp", d.Listen)
	if err != nil || addr.Port == 0 {
		return nil // the settings tell of it; or it is not known where a server is
	}
	if addr.IP == nil || addr.IP.IsUnspecified() {
		addr.IP = net.IPv4(127, 0, 0, 1)
	}
	server := "http://" + addr.String()
	if d.TLSCert != "" {
		server = cmp.Or(d.Advertise, "https://"+addr.String())
	}
	c, err := client.New(client.Options{URL: server, Token: tokenFrom("", nil), Timeout: within, UserAgent: "lapse doctor"})
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	f, err := c.Forecast(ctx, client.Outlook{Window: 24 * time.Hour})
	switch {
	case errors.Is(err, client.ErrUnreachable) || ctx.Err() != nil:
		return nil // none runs
	case err != nil:
		return []checkup.Finding{{Subject: subject, Verdict: checkup.Unknown, Found: err.Error(), Do: "set LAPSE_TOKEN to a token that may read, or ask the server: lapse forecast --window 24h"}}
	}
	j := &f.Judgement
	finding := checkup.Good(subject, j.Text)
	switch {
	case len(j.Peaks) > 0 && j.Limit:
		finding.Verdict, finding.Do = checkup.Warn, "add receivers before it comes, raise concurrency, or give the topic a spread: lapse forecast --topic TOPIC says how long"
	case j.Rate == 0 || len(j.Peaks) > 0 || !f.Complete:
		finding.Verdict = checkup.Unknown
	}
	return []checkup.Finding{finding}
}

// settingsOf returns a finding for each fault of the settings.
func (d *doctor) settingsOf(bad *faults) (findings []checkup.Finding) {
	addr, _ := d.addresses(bad)
	d.entrance(bad)
	ways := d.ways(addr, bad)
	d.redisPort(bad)
	defer ways.close()
	cfg := d.scheduler(d.file.topics, ways.list())
	bad.include(cfg.Validate())
	if bad.err() == nil {
		return []checkup.Finding{checkup.Good("settings", "valid")}
	}
	for _, fault := range bad.all.Errors {
		findings = append(findings, checkup.Finding{Subject: "settings", Verdict: checkup.Fail, Found: fault.Error(), Do: "lapse serve --help has each setting with its range"})
	}
	return findings
}

// files looks at the certificate and at files with secrets.
func (d *doctor) files() (findings []checkup.Finding) {
	if d.TLSCert != "" && d.TLSKey != "" {
		host := ""
		if u, err := url.Parse(d.Advertise); err == nil {
			host = u.Hostname()
		}
		findings = append(findings, look.Certificate(d.TLSCert, d.TLSKey, host, time.Now()))
	}
	for _, f := range d.guardedFiles() {
		findings = append(findings, f.Modes())
	}
	return findings
}

// redisToInspect are the options of a ledger that is only looked at. The name of the node does not
// matter to that.
func (d *doctor) redisToInspect() redisledger.Options {
	options := d.redis(slog.New(slog.DiscardHandler), nil)
	options.Node = cmp.Or(options.Node, "doctor")
	return options
}

func (d *doctor) print(w io.Writer, findings []checkup.Finding) error {
	if d.JSON {
		for _, f := range findings {
			text, err := json.Marshal(f)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%s\n", plainJSON(text)); err != nil {
				return err
			}
		}
		return nil
	}
	var rows [][]string
	for _, f := range findings {
		rows = append(rows, []string{string(f.Verdict), f.Subject, f.Found})
	}
	table(w, rows)
	failed, warned := verdicts(findings, checkup.Fail), verdicts(findings, checkup.Warn)
	_, err := fmt.Fprintf(w, "%d looked at, %s, %s\n", len(findings), counted(failed, "failure", "failures"), counted(warned, "warning", "warnings"))
	for _, v := range []checkup.Verdict{checkup.Fail, checkup.Warn, checkup.Unknown} {
		for _, f := range findings {
			if f.Verdict == v && f.Do != "" {
				fmt.Fprintf(w, "%s: %s\n", plain(f.Subject), plain(f.Do))
			}
		}
	}
	return err
}

func verdicts(findings []checkup.Finding, v checkup.Verdict) int {
	return len(slices.DeleteFunc(slices.Clone(findings), func(f checkup.Finding) bool { return f.Verdict != v }))
}

// memoryHere is how many bytes this process may use; 0 if that is not known.
func memoryHere() int64 {
	return memoryLimit(int64(bench.ThisMachine().MemoryMB)<<20, "/sys/fs/cgroup/memory.max")
}
