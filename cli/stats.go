package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

// figures are the flags of commands that show counts.
type figures struct {
	Scope string `env:"-" default:"fleet" enum:"fleet,node" help:"Whose counts: fleet, of all nodes that share the ledger, or node, of the server alone."`
}

// stats is the command that shows all counts of a server.
type stats struct {
	remote
	figures
}

func (c *stats) call(ctx context.Context, s *session) error {
	all, err := s.Stats(ctx, client.Scope(c.Scope))
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) { statsBlock(w, all, time.Now()) })
}

// health is the command that asks a server whether it is well. Probes of containers, which have no
// other program for it, run it.
type health struct {
	remote
	Ready bool `env:"-" help:"Ask whether it is ready, too: whether it has read back its tasks, and is not about to stop."`
}

// call asks once. Error: client.ErrUnavailable with what is wrong.
func (c *health) call(ctx context.Context, s *session) error {
	alive, err := s.Alive(ctx)
	if err != nil {
		return err
	}
	if alive.Status != "alive" {
		return fmt.Errorf("%w: the server says that it is %s %s", client.ErrUnavailable, alive.Status, alive.Detail)
	}
	if !c.Ready {
		return s.print(func(w io.Writer) { fmt.Fprintln(w, "alive") })
	}
	ready, err := s.Client.Ready(ctx)
	if err != nil {
		return err
	}
	if !ready.Ready {
		return fmt.Errorf("%w: the server is alive, and not ready: /readyz says why", client.ErrUnavailable)
	}
	return s.print(func(w io.Writer) { fmt.Fprintln(w, "ready") })
}

// lateness is for people: the quantiles are the upper bounds of wide buckets, and would otherwise
// seem to be far above the mean.
func lateness(n *client.Counts) string {
	if n.Lateness.Count == 0 {
		return "nothing was delivered yet"
	}
	return fmt.Sprintf("mean %s, p50 up to %s, p99 up to %s", n.Lateness.Mean, n.Lateness.P50, n.Lateness.P99)
}

// upTo is a quantile of the lateness in a table: the upper bound of a bucket. It is 0 if nothing
// was late and if there was nothing.
func upTo(quantile client.Duration) string {
	if quantile == 0 {
		return "-"
	}
	return quantile.String()
}

// lateNow is about the last minutes, and about the tasks that are ready.
func lateNow(n *client.Counts, now time.Time) string {
	if n.Recent.Count == 0 && n.Overdue.Count == 0 {
		return "nothing is overdue, and no first attempt was made in the last 5 minutes"
	}
	text := fmt.Sprintf("p50 up to %s, p99 up to %s, most %s", latenessText(n.Recent.P50), latenessText(n.Recent.P99), latenessText(n.Recent.Max))
	if n.Overdue.Count > 0 { // first: a narrow terminal cuts the end
		text = overdueText(n, now) + "; " + text
	}
	return text
}

// overdueText says how many tasks are past their deadline, and since when the oldest is.
func overdueText(n *client.Counts, now time.Time) string {
	text := fmt.Sprintf("%d overdue", n.Overdue.Count)
	if n.Overdue.OldestAt != nil {
		text += ", the oldest for " + oldest(n, now)
	}
	if n.Overdue.Retrying > 0 {
		text += fmt.Sprintf(", %d retrying", n.Overdue.Retrying)
	}
	if n.Overdue.Paused > 0 {
		text += fmt.Sprintf(", %d in paused topics", n.Overdue.Paused)
	}
	return text
}

// latenessText is a lateness in a few characters.
func latenessText(d client.Duration) string {
	if time.Duration(d) < time.Second {
		return d.String()
	}
	return roundedText(time.Duration(d))
}

// taskCounts is how many tasks stand where.
func taskCounts(n *client.Counts) string {
	var parts []string
	if n.Retrying > 0 {
		parts = append(parts, fmt.Sprintf("%d retrying", n.Retrying))
	}
	if n.Held > 0 {
		parts = append(parts, fmt.Sprintf("%d held", n.Held))
	}
	among := ""
	if len(parts) > 0 {
		among = " (" + strings.Join(parts, ", ") + ")"
	}
	finished := ""
	if n.Finished > 0 {
		finished = fmt.Sprintf(", %d finished", n.Finished)
	}
	return fmt.Sprintf("%d pending%s, %d ready, %d delivering, %d dead%s", n.Pending, among, n.Ready, n.Delivering, n.Dead, finished)
}

// attempts is how deliveries have ended since the start of the node.
func attempts(n *client.Counts) string {
	a := &n.Attempts
	return fmt.Sprintf("%d delivered, %d retried, %d exhausted, %d buried, %d with an expired lease, %d returned",
		a.Delivered, a.Retried, a.Exhausted, a.Buried, a.LeaseExpired, a.Returned)
}

// coverage says which nodes the figures are of; empty for those of the only node there is.
func coverage(r *client.Reach) string {
	switch {
	case r.Scope == string(client.ScopeNode):
		return "node " + strings.Join(r.Covers, ", ") + " alone"
	case len(r.Covers) < 2 && len(r.Missing) == 0 && len(r.RecentWithout) == 0:
		return ""
	}
	text := strings.Join(r.Covers, ", ")
	if len(r.Missing) > 0 {
		text += "; missing: " + missing(r)
	}
	if lacks := lacksRecent(r); lacks != "" {
		text += "; " + lacks
	}
	return text
}

// lacksRecent says what figures of the last 5 minutes lack, "" if nothing.
func lacksRecent(r *client.Reach) string {
	if len(r.RecentWithout) == 0 {
		return ""
	}
	return fmt.Sprintf("the last 5 min without what %s had counted until %s", plain(strings.Join(r.RecentWithout, ", ")), r.RecentSince.UTC().Format(time.TimeOnly+" MST"))
}

// missing names the nodes whose figures are missing, and says why.
func missing(r *client.Reach) string {
	var all []string
	for _, m := range r.Missing {
		all = append(all, plain(strings.TrimSpace(m.Node+" ("+m.Error+")")))
	}
	return strings.Join(all, ", ")
}

// warnOfMissing says below a table which nodes it lacks.
func warnOfMissing(w io.Writer, r *client.Reach) {
	if len(r.Missing) > 0 {
		fmt.Fprintf(w, "\nWithout the figures of %s.\n", missing(r))
	}
}

// nodeState says what the node that was asked is doing: ready, if nothing else.
func nodeState(r *client.Readiness) string {
	switch {
	case r.ShuttingDown:
		return "shutting down"
	case r.Draining:
		return "draining: what it holds is handed over to other nodes"
	case r.Unsure:
		return "cut off from the ledger: others may have adopted what it holds"
	case r.Starting:
		return "waiting for the ledger"
	case !r.Ready:
		return fmt.Sprintf("replaying for %s, %d records so far", roundedText(time.Duration(r.Replay.Elapsed)), r.Replay.Records)
	}
	return "ready"
}

// waiting is how many calls of reserve wait, of all topics; empty if there are none.
func waiting(n *client.Counts) string {
	if n.Receivers == 0 {
		return ""
	}
	return fmt.Sprintf("%d waiting", n.Receivers)
}

func statsBlock(w io.Writer, s *client.Stats, now time.Time) {
	n := &s.Total
	dead := ""
	if n.DeadOldestAt != nil {
		dead = ", the first of them " + relative(*n.DeadOldestAt, now)
	}
	ledger := fmt.Sprintf("%d changes in %d commits", s.Ledger.Changes, s.Ledger.Commits)
	if s.State.Ledger.Stalled > 0 {
		ledger += ", silent for " + roundedText(time.Duration(s.State.Ledger.Stalled))
	}
	if s.State.Ledger.Condition != "" {
		ledger += ", " + s.State.Ledger.Condition
	}
	block(w, s.Node, "version", s.Version, "up", roundedText(time.Duration(s.Uptime)), "state", nodeState(&s.State), "counts of", coverage(&s.Reach),
		"tasks", taskCounts(n)+dead,
		"since start", fmt.Sprintf("%d scheduled, %d delivered, %d failed, %d died, %d cancelled, %d skipped",
			n.Scheduled, n.Delivered, n.Failed, n.Died, n.Cancelled, n.Skipped),
		"attempts", attempts(n), "lateness", lateness(n), "late now", lateNow(n, now),
		"receivers", waiting(n), "ledger", ledger, "warnings", strings.Join(s.State.Ledger.Warnings, "; "), "memory", fmt.Sprintf("%.1f MiB of tasks", float64(s.Memory.ArenaLive)/(1<<20)),
		"rescued", strconv.FormatInt(s.Sweep.Rescued, 10))
	if s.TopicsLeftOut > 0 {
		fmt.Fprintf(w, "\n%d topics; lapse topics list shows them.\n", s.TopicsLeftOut)
	}
	if len(s.Topics) > 0 {
		fmt.Fprintln(w)
		topicTable(w, s.Topics, now)
	}
}
