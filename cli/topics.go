package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

type topicsList struct {
	remote
	figures
	Search string `env:"-" placeholder:"PART" help:"Only topics whose names have this part, in whatever case."`
	Sort   string `env:"-" placeholder:"ORDER" enum:"name,worst,late,failed,dead,ready,pending,paused" help:"What comes first: worst (late, failing, dead, paused), late, failed (in the last 5 minutes), dead, ready, pending, paused or name. Default: name."`
}

func (c *topicsList) call(ctx context.Context, s *session) error {
	list, reach, err := allTopics(ctx, s, client.TopicQuery{Search: c.Search, Sort: client.TopicSort(c.Sort), Scope: client.Scope(c.Scope)})
	if err != nil {
		return err
	}
	return s.printList("topics", func(w io.Writer) {
		topicTable(w, list, time.Now())
		warnOfMissing(w, &reach)
	})
}

// allTopics returns the topics of all pages. The nodes are those of the last one.
func allTopics(ctx context.Context, s *session, q client.TopicQuery) (all []client.TopicInfo, reach client.Reach, err error) {
	for {
		p, err := s.FindTopics(ctx, q)
		if err != nil {
			return nil, reach, err
		}
		all, reach = append(all, p.Topics...), p.Reach
		if q.Cursor = p.NextCursor; q.Cursor == "" {
			return all, reach, nil
		}
	}
}

func topicTable(w io.Writer, list []client.TopicInfo, now time.Time) {
	rows := [][]string{{"TOPIC", "PENDING", "READY", "DELIVERING", "DEAD", "DELIVERED", "FAILED", "LATE P99 ≤", "OVERDUE", "OLDEST", "LATE NOW P99 ≤", "RETRYING", ""}}
	for i := range list {
		t, n := &list[i], &list[i].Counts
		paused := ""
		if t.Paused {
			paused = "paused"
		}
		row := []string{t.Name}
		for _, count := range []int64{n.Pending, n.Ready, n.Delivering, n.Dead, n.Delivered, n.Failed} {
			row = append(row, strconv.FormatInt(count, 10))
		}
		rows = append(rows, append(row, upTo(n.Lateness.P99), strconv.FormatInt(n.Overdue.Count, 10), oldest(n, now), upTo(n.Recent.P99), strconv.FormatInt(n.Retrying, 10), paused))
	}
	table(w, rows)
}

type topicsGet struct {
	remote
	figures
	Topic string `arg:"" help:"The topic."`
}

func (c *topicsGet) call(ctx context.Context, s *session) error {
	t, err := s.Topic(ctx, c.Topic, client.Scope(c.Scope))
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) { topicBlock(w, t, time.Now()) })
}

// oldest is for how long the deadline has passed of the oldest overdue task.
func oldest(n *client.Counts, now time.Time) string {
	if n.Overdue.OldestAt == nil {
		return "-"
	}
	return roundedText(max(0, now.Sub(*n.Overdue.OldestAt)))
}

func topicBlock(w io.Writer, t *client.TopicInfo, now time.Time) {
	n := &t.Counts
	concurrency := strconv.Itoa(t.Concurrency)
	if t.ConcurrencyNow > t.Concurrency {
		concurrency += fmt.Sprintf(", %d during the backlog", t.ConcurrencyNow)
	}
	way, rate := t.Delivery.Kind, ""
	if len(t.Delivery.Settings) > 0 {
		settings, _ := json.Marshal(t.Delivery.Settings) // it came as JSON
		way += " " + string(settings)
	}
	if t.Rate != nil {
		rate = fmt.Sprintf("%v a second, %d at once", t.Rate.PerSecond, t.Rate.Burst)
	}
	block(w, t.Name, "delivery", way, "undeliverable", t.Undeliverable, "paused", strconv.FormatBool(t.Paused), "max attempts", strconv.Itoa(t.Retry.MaxAttempts), "max age", maxAge(t.Retry.MaxAge),
		"backoff", t.Retry.MinBackoff.String()+" to "+t.Retry.MaxBackoff.String(), "lease", t.Lease.String(),
		"concurrency", concurrency, "per group", perGroup(t), "rate", rate, "weight", strconv.Itoa(t.Weight), "spread", t.Spread.String(), "misfire", t.Misfire,
		"dead kept", t.DeadRetention.String(), "finished kept", t.KeepFinished.String(), "count crashes", strconv.FormatBool(t.CountCrashes), "on dead", onDead(t.OnDead), "task delivery", strconv.FormatBool(t.TaskDelivery), "links", topicLinks(t.Links), "revision", strconv.FormatInt(t.Revision, 10),
		"tasks", taskCounts(n),
		"since start", fmt.Sprintf("%d scheduled, %d delivered, %d failed, %d died, %d cancelled, %d skipped",
			n.Scheduled, n.Delivered, n.Failed, n.Died, n.Cancelled, n.Skipped),
		"attempts", attempts(n), "lateness", lateness(n), "late now", lateNow(n, now), "receivers", receivers(t), "last error", lastError(t, now), "counts of", coverage(&t.Reach))
}

// receivers is how many calls of reserve wait; empty if the topic is not pulled.
func receivers(t *client.TopicInfo) string {
	if t.Delivery.Kind != "pull" {
		return ""
	}
	return strconv.FormatInt(t.Counts.Receivers, 10) + " waiting"
}

func lastError(t *client.TopicInfo, now time.Time) string {
	if t.LastFailedAt == nil {
		return ""
	}
	return cmp.Or(t.LastError, "no reason given") + ", " + relative(*t.LastFailedAt, now)
}

// perGroup is the bound of the deliveries of a group; empty if there is none.
func perGroup(t *client.TopicInfo) string {
	if t.ConcurrencyPerGroup == 0 {
		return ""
	}
	return fmt.Sprintf("%d; %d tasks wait for others of their groups", t.ConcurrencyPerGroup, t.Counts.Blocked)
}

func onDead(d *client.OnDead) string {
	switch {
	case d == nil:
		return ""
	case d.Delay == 0:
		return "followed by a task of " + d.Topic
	}
	return "followed by a task of " + d.Topic + " after " + d.Delay.String()
}

// topicLinks are the links of a topic by name; empty if there are none.
func topicLinks(links map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(links)) {
		all = append(all, name+" "+links[name])
	}
	return strings.Join(all, ", ")
}

func maxAge(d client.Duration) string {
	if d == 0 {
		return "no bound"
	}
	return d.String()
}

type topicsSet struct {
	remote
	Topic         string   `arg:"" help:"The topic."`
	Delivery      string   `env:"-" placeholder:"JSON" help:"Way of delivery, with its fields: '{\"kind\":\"webhook\",\"url\":\"https://shop/hooks\"}'."`
	Kind          string   `env:"-" placeholder:"KIND" help:"Way of delivery, if it needs no more: pull, or stream or pubsub under their default names."`
	MaxAttempts   *int     `env:"-" placeholder:"N" help:"Then a task is dead, 1 to 1000000."`
	MaxAge        span     `env:"-" placeholder:"24h" help:"So long after the deadline a failed attempt is the last one, 1s to 3660d."`
	MinBackoff    span     `env:"-" placeholder:"1s" help:"Shortest pause after a failed attempt, 1ms to 24h."`
	MaxBackoff    span     `env:"-" placeholder:"10m" help:"Longest pause after a failed attempt, to 30d."`
	Lease         span     `env:"-" placeholder:"30s" help:"How long a delivery may stay unsettled, 1s to 24h."`
	Concurrency   *int     `env:"-" placeholder:"N" help:"Deliveries at once, 1 to 100000; pull is not bound by it."`
	Rate          *float64 `env:"-" placeholder:"N" help:"Deliveries a second, on each node, 0.001 to 1000000; 0 takes the bound away."`
	Burst         *int     `env:"-" placeholder:"N" help:"How many may begin at once after a rest, 1 to 1000000."`
	Weight        *int     `env:"-" placeholder:"N" help:"Share of the node's places for deliveries when they are scarce, 1 to 1000."`
	Spread        span     `env:"-" placeholder:"1m" help:"Window over which tasks of one instant are delivered, to 24h."`
	Misfire       string   `env:"-" placeholder:"deliver" help:"What becomes of tasks that fell due while no process held them: deliver, skip or coalesce."`
	DeadRetention span     `env:"-" placeholder:"7d" help:"How long dead tasks are kept, 1m to 3660d."`
	KeepFinished  span     `env:"-" placeholder:"0" help:"How long finished tasks can be read and are not created anew, to 30d; 0: not at all."`
	PerGroup      string   `name:"concurrency-per-group" env:"-" placeholder:"N" help:"Deliveries of one group of tasks at once, on each node, 1 to 10000; 0: no bound."`
	OnDead        *string  `env:"-" empty:"" placeholder:"TOPIC" help:"A task that dies is followed by one of this topic; an empty one takes that away."`
	OnDeadDelay   span     `env:"-" placeholder:"0" help:"From the death to the deadline of that task."`
	TaskDelivery  *bool    `env:"-" negatable:"" help:"Let tasks have a delivery of their own: their receiver and their retry."`
	Link          []string `env:"-" sep:"none" placeholder:"NAME=URL" help:"Address of a page about each task that the dashboard shows, such as 'logs=https://logs.example/?q={id}'; {topic} and {group} too. An empty URL takes it away. May be repeated."`
	CountCrashes  *bool    `env:"-" negatable:"" help:"Record each attempt before it is delivered."`
	Paused        *bool    `env:"-" negatable:"" help:"Accept tasks, but do not deliver them."`
	Create        bool     `env:"-" help:"Also a topic, or one of --on-dead, that does not exist yet, and has almost the name of one that does."`

	way client.Way // of Delivery or Kind
}

func (c *topicsSet) check(bad *faults) {
	for name, d := range map[string]span{"max-age": c.MaxAge, "min-backoff": c.MinBackoff, "max-backoff": c.MaxBackoff, "lease": c.Lease, "dead-retention": c.DeadRetention} {
		if d.given && d.Duration == 0 {
			bad.add("%s: must not be zero", name)
		}
	}
	if _, err := strconv.Atoi(c.PerGroup); err != nil && c.PerGroup != "" {
		bad.add("concurrency-per-group: must be a number")
	}
	if c.Delivery != "" {
		if err := json.Unmarshal([]byte(c.Delivery), &c.way); err != nil || c.way.Kind == "" {
			bad.add("delivery: must be a JSON object with a kind, such as {\"kind\":\"pull\"}")
		} else if hasRepeatedField(c.Delivery) {
			bad.add("delivery: must not have a field twice")
		}
		if c.Kind != "" {
			bad.add("kind: must not be given beside delivery")
		}
	}
	if c.Kind != "" {
		c.way = client.Way{Kind: c.Kind}
	}
}

// call changes the given settings, unless another caller changes them meanwhile.
func (c *topicsSet) call(ctx context.Context, s *session) error {
	have, err := s.Topic(ctx, c.Topic)
	switch {
	case errors.Is(err, client.ErrNoTopic):
		have = &client.TopicInfo{}
		if !c.Create {
			if err := s.checkNew(ctx, c.Topic); err != nil {
				return err
			}
		}
	case err != nil:
		return err
	}
	if c.OnDead != nil && *c.OnDead != "" && !c.Create {
		if err := s.checkNew(ctx, *c.OnDead); err != nil {
			return err
		}
	}
	if c.Burst != nil && (c.Rate == nil && have.Rate == nil || c.Rate != nil && *c.Rate == 0) {
		return fmt.Errorf("%w: burst: needs a rate, and the topic has none: give --rate too", errSettings)
	}
	patch := c.patch()
	if !c.way.IsZero() {
		patch["delivery"] = replaceWay(have.Delivery, c.way)
	}
	t, err := s.ChangeTopic(ctx, c.Topic, patch, have.Revision)
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) { topicBlock(w, t, time.Now()) })
}

// patchOnDead adds what follows a dead task.
func (c *topicsSet) patchOnDead(patch map[string]any) {
	onDead := map[string]any{}
	setIfGiven(onDead, "topic", c.OnDead)
	setIfGiven(onDead, "delay", (*client.Duration)(c.OnDeadDelay.pointer()))
	switch {
	case c.OnDead != nil && *c.OnDead == "":
		patch["on_dead"] = nil
	case len(onDead) > 0:
		patch["on_dead"] = onDead
	}
}

// patch holds the given settings, by the names of the API.
func (c *topicsSet) patch() map[string]any {
	patch, retry := map[string]any{}, map[string]any{}
	setIfGiven(patch, "weight", c.Weight)
	setIfGiven(patch, "spread", (*client.Duration)(c.Spread.pointer()))
	setIfGiven(patch, "dead_retention", (*client.Duration)(c.DeadRetention.pointer()))
	setIfGiven(patch, "keep_finished", (*client.Duration)(c.KeepFinished.pointer()))
	setIfGiven(patch, "concurrency", c.Concurrency)
	if n, err := strconv.Atoi(c.PerGroup); err == nil {
		patch["concurrency_per_group"] = n
	}
	setIfGiven(patch, "count_crashes", c.CountCrashes)
	c.patchOnDead(patch)
	links := map[string]any{}
	for _, link := range c.Link {
		name, url, _ := strings.Cut(link, "=")
		if links[name] = url; url == "" {
			links[name] = nil
		}
	}
	if len(links) > 0 {
		patch["links"] = links
	}
	setIfGiven(patch, "task_delivery", c.TaskDelivery)
	setIfGiven(patch, "paused", c.Paused)
	setIfGiven(patch, "lease", (*client.Duration)(c.Lease.pointer()))
	if c.Misfire != "" {
		patch["misfire"] = c.Misfire
	}
	setIfGiven(retry, "max_attempts", c.MaxAttempts)
	setIfGiven(retry, "max_age", (*client.Duration)(c.MaxAge.pointer()))
	setIfGiven(retry, "min_backoff", (*client.Duration)(c.MinBackoff.pointer()))
	setIfGiven(retry, "max_backoff", (*client.Duration)(c.MaxBackoff.pointer()))
	if len(retry) > 0 {
		patch["retry"] = retry
	}
	switch {
	case c.Rate != nil && *c.Rate == 0:
		patch["rate"] = nil
	case c.Rate != nil && c.Burst == nil:
		// The default of burst follows the rate.
		patch["rate"] = map[string]any{"per_second": *c.Rate, "burst": nil}
	case c.Rate != nil:
		patch["rate"] = map[string]any{"per_second": *c.Rate, "burst": *c.Burst}
	case c.Burst != nil:
		patch["rate"] = map[string]any{"burst": *c.Burst}
	}
	return patch
}

// setIfGiven enters a value if one was given.
func setIfGiven[T any](patch map[string]any, name string, given *T) {
	if given != nil {
		patch[name] = *given
	}
}
