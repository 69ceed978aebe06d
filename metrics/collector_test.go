package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/lapsehq/lapse/internal/stamp"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

type fixed tasks.Stats

func (f fixed) Stats() tasks.Stats { return tasks.Stats(f) }

// Nodes are one node of each state.
func (f fixed) Nodes(context.Context) ([]tasks.Node, error) {
	return []tasks.Node{
		{Live: true}, {Live: true, Status: &tasks.NodeStatus{Draining: true}}, {Live: true, Status: &tasks.NodeStatus{}},
		{}, {Released: true}, {Released: true, Live: true, Status: &tasks.NodeStatus{Draining: true}},
	}, nil
}

// A server has refused requests, and answered one.
type server struct{}

func (server) Refusals() map[string]int64 { return map[string]int64{"poll": 71} }

func (server) EachRoute(visit func(method, route, status string, took tasks.Latency)) {
	visit("GET", "/v1/tasks/{id}", "2xx", took(3*time.Millisecond))
}

// A port has answered commands.
type port struct{}

func (port) Connections() (int, map[string]int64) { return 72, map[string]int64{"refused": 73} }

func (port) WrongTokens() int64 { return 91 }

func (port) EachCommand(visit func(name string, done, failed int64, took tasks.Latency)) {
	visit("set", 74, 75, took(3*time.Millisecond))
}

func (port) Subscribers() (now int, cut int64) { return 76, 77 }

func (port) EventsDropped() map[string]int64 { return map[string]int64{"unsent": 78, "lost": 79} }

// took is a Latency of one duration.
func took(d time.Duration) (l tasks.Latency) {
	l.Buckets[slices.IndexFunc(tasks.LatencyBounds[:], func(bound time.Duration) bool { return d <= bound })]++
	l.Sum = d
	return l
}

// A readLog is a log that has dropped so many lines.
type readLog int64

func (l readLog) Dropped() int64 { return int64(l) }

func scrape(t *testing.T, s tasks.Stats) string {
	t.Helper()
	w := httptest.NewRecorder()
	handler(fixed(s), server{}, port{}, readLog(3)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestMetricsShowTheFigures(t *testing.T) {
	topic := task.Topic{Name: "order.unpaid", Settings: tasks.TopicSettings{Paused: true}, Counts: tasks.Counts{
		Pending: 1, Ready: 2, Delivering: 3, Dead: 4, Scheduled: 5, Delivered: 6, Failed: 7,
		LeaseExpired: 8, ReadyCounts: tasks.ReadyCounts{Blocked: 75, Strays: 76}, DeathCounts: tasks.DeathCounts{Died: 9, Expired: 38, FollowUps: 72, FollowUpsLost: 73, FollowUpsEnded: 74}, Cancelled: 10, Skipped: 11, Panicked: 12,
		DeadOldest:  time.UnixMilli(1_000_000),
		ReadyOldest: time.UnixMilli(1_009_500), Receivers: 13, Retried: 15, Exhausted: 16, Buried: 17, Returned: 18, Recent: tasks.RecentLateness{Max: 1500 * time.Millisecond},
	}}
	topic.Counts.Retrying = 14
	version, revision := stamp.Read()
	topic.Counts.Recent.Counts[1], topic.Counts.Recent.Counts[10] = 3, 1 // up to 2 ms and 2 s
	topic.Counts.Lateness.Counts[0] = 2                                  // up to 1 ms
	topic.Counts.Lateness.Counts[2] = 3                                  // up to 5 ms
	topic.Counts.Lateness.Counts[len(tasks.LatenessBounds)] = 1          // above
	topic.Counts.Lateness.Sum = 2 * time.Hour
	got := scrape(t, tasks.Stats{
		Node: "here", At: time.UnixMilli(1_039_500), Topics: []task.Topic{topic},
		Ways: []tasks.WayStats{
			{Kind: "webhook", Outcomes: map[string]int64{"2xx": 38, "dns": 0}},
			{Kind: "stream"},
		},
		Readiness: tasks.Readiness{Ready: true, Replayed: 13, Elapsed: 1500 * time.Millisecond, LedgerOK: true, Condition: "disk low", Away: 7, Unsure: true, Draining: true},
		Figures: tasks.Figures{
			SweepStats: tasks.SweepStats{
				Rescued: 14, MissedWakes: 31, LeasesReturned: 15, AuditChecked: 16, AuditRepaired: 17, ClockSteps: 24,
				FullSweeps: 32, FullSweepAt: time.UnixMilli(33_500), FullSweepTook: 34 * time.Second,
			},
			ShardStats: tasks.ShardStats{
				Rewinds: 30, ShardsHeld: 50, ShardsAdopted: 9, ShardsGained: 42, ShardsYielded: 43, ShardsLost: 44,
				TasksDropped: 45, UnsureDeliveries: 46, LostDeliveries: 47, UnknownRecords: 25,
			},
			LoadStats: tasks.LoadStats{Backlog: 35, Backlogs: 36, Concurrency: 37, Workers: 38, Crowd: 39, Subscriptions: 38, EventsLost: 39, Coalescing: 72, Coalesced: 73},
			PeerStats: tasks.PeerStats{ReservesGiven: 40, ReservesTaken: 41, HelpTaken: 43, HelpGiven: 42, SettlementsDropped: 44},
			Spool:     tasks.SpoolStats{Tasks: 61, Moved: 62, Missing: 63},
			Ledger:    recovery.CommitterStats{Commits: 18, Changes: 19, Repeats: 20, Queued: 21},
			Armed:     26, ArenaBytes: 22, ArenaLive: 23,
		},
		Relay: tasks.RelayStats{Asked: 51, Unanswered: 52, Unheard: 53, Overloaded: 54, Resent: 55, Answered: 56, Refused: 57, Asking: 58, Answering: 59},
		Took: tasks.Took{
			Attempts: map[tasks.Kind]tasks.Latency{"webhook": took(40 * time.Millisecond)},
			Commits:  took(200 * time.Microsecond),
		},
	})
	for _, line := range []string{
		`lapse_http_refused_total{reason="poll"} 71`,
		`lapse_log_dropped_total 3`,
		`lapse_resp_connections 72`,
		`lapse_resp_connections_total{outcome="refused"} 73`,
		`lapse_resp_wrong_tokens_total 91`,
		`lapse_resp_commands_total{command="set",outcome="done"} 74`,
		`lapse_resp_commands_total{command="set",outcome="error"} 75`,
		`lapse_resp_command_seconds_bucket{command="set",le="0.002"} 0`,
		`lapse_resp_command_seconds_bucket{command="set",le="0.005"} 1`,
		`lapse_resp_command_seconds_sum{command="set"} 0.003`,
		`lapse_resp_subscribers 76`,
		`lapse_resp_subscribers_cut_total 77`,
		`lapse_resp_events_dropped_total{reason="unsent"} 78`,
		`lapse_resp_events_dropped_total{reason="lost"} 79`,
		`lapse_http_request_duration_seconds_bucket{method="GET",route="/v1/tasks/{id}",status="2xx",le="0.002"} 0`,
		`lapse_http_request_duration_seconds_bucket{method="GET",route="/v1/tasks/{id}",status="2xx",le="0.005"} 1`,
		`lapse_http_request_duration_seconds_sum{method="GET",route="/v1/tasks/{id}",status="2xx"} 0.003`,
		`lapse_delivery_duration_seconds_bucket{kind="webhook",le="0.02"} 0`,
		`lapse_delivery_duration_seconds_bucket{kind="webhook",le="0.05"} 1`,
		`lapse_ledger_commit_duration_seconds_bucket{le="0.0001"} 0`,
		`lapse_ledger_commit_duration_seconds_bucket{le="0.0002"} 1`,
		`lapse_ledger_commit_duration_seconds_count 1`,
		`lapse_tasks{state="pending",topic="order.unpaid"} 1`,
		`lapse_tasks{state="ready",topic="order.unpaid"} 2`,
		`lapse_tasks{state="delivering",topic="order.unpaid"} 3`,
		`lapse_tasks{state="dead",topic="order.unpaid"} 4`,
		`lapse_tasks_retrying{topic="order.unpaid"} 14`,
		`lapse_tasks_scheduled_total{topic="order.unpaid"} 5`,
		`lapse_tasks_delivered_total{topic="order.unpaid"} 6`,
		`lapse_attempts_failed_total{topic="order.unpaid"} 7`,
		`lapse_tasks_blocked{topic="order.unpaid"} 75`, `lapse_tasks_strays{topic="order.unpaid"} 76`,
		`lapse_on_dead_total{outcome="made",topic="order.unpaid"} 72`,
		`lapse_on_dead_total{outcome="lost",topic="order.unpaid"} 73`,
		`lapse_on_dead_total{outcome="ended",topic="order.unpaid"} 74`,
		`lapse_attempts_total{outcome="delivered",topic="order.unpaid"} 6`,
		`lapse_attempts_total{outcome="retried",topic="order.unpaid"} 15`,
		`lapse_attempts_total{outcome="exhausted",topic="order.unpaid"} 16`,
		`lapse_attempts_total{outcome="buried",topic="order.unpaid"} 17`,
		`lapse_attempts_total{outcome="lease_expired",topic="order.unpaid"} 8`,
		`lapse_attempts_total{outcome="returned",topic="order.unpaid"} 18`,
		`lapse_attempts_lease_expired_total{topic="order.unpaid"} 8`,
		`lapse_tasks_died_total{topic="order.unpaid"} 9`,
		`lapse_dead_expired_total{topic="order.unpaid"} 38`,
		`lapse_dead_oldest_age_seconds{topic="order.unpaid"} 39.5`,
		`lapse_ready_oldest_age_seconds{topic="order.unpaid"} 30`,
		`lapse_receivers_waiting{topic="order.unpaid"} 13`,
		`lapse_lateness_recent_seconds{percentile="50",topic="order.unpaid"} 0.002`,
		`lapse_lateness_recent_seconds{percentile="99",topic="order.unpaid"} 1.5`,
		`lapse_lateness_recent_seconds{percentile="100",topic="order.unpaid"} 1.5`,
		fmt.Sprintf(`lapse_build_info{goversion=%q,revision=%q,version=%q} 1`, runtime.Version(), revision, version),
		`lapse_tasks_cancelled_total{topic="order.unpaid"} 10`,
		`lapse_tasks_skipped_total{topic="order.unpaid"} 11`,
		`lapse_attempts_panicked_total{topic="order.unpaid"} 12`,
		`lapse_lateness_seconds_bucket{topic="order.unpaid",le="0.001"} 2`,
		`lapse_lateness_seconds_bucket{topic="order.unpaid",le="0.002"} 2`,
		`lapse_lateness_seconds_bucket{topic="order.unpaid",le="0.005"} 5`,
		`lapse_lateness_seconds_bucket{topic="order.unpaid",le="3600"} 5`,
		`lapse_lateness_seconds_bucket{topic="order.unpaid",le="+Inf"} 6`,
		`lapse_lateness_seconds_sum{topic="order.unpaid"} 7200`,
		`lapse_topic_paused{topic="order.unpaid"} 1`,
		`lapse_delivery_outcomes_total{kind="webhook",outcome="2xx"} 38`,
		`lapse_delivery_outcomes_total{kind="webhook",outcome="dns"} 0`,
		`lapse_spool_tasks 61`, `lapse_spool_moved_total 62`, `lapse_spools_missing 63`,
		`lapse_node_info{node="here"} 1`,
		`lapse_ready 1`, `lapse_replay_records 13`, `lapse_replay_seconds 1.5`,
		`lapse_sweep_rescued_total 14`, `lapse_sweep_leases_returned_total 15`,
		`lapse_sweep_missed_wakes_total 31`, `lapse_sweep_full_total 32`, `lapse_sweep_full_timestamp_seconds 33.5`, `lapse_sweep_full_seconds 34`,
		`lapse_sweep_backlog 35`, `lapse_sweep_backlogs_total 36`, `lapse_sweep_concurrency 37`, `lapse_deliveries_running 38`, `lapse_deliveries_waiting_topics 39`,
		`lapse_audit_checked_total 16`, `lapse_audit_repaired_total 17`, `lapse_ledger_rewinds_total 30`,
		`lapse_ledger_up 1`, `lapse_ledger_stalled_seconds 0`, `lapse_ledger_accepting 0`,
		`lapse_ledger_commits_total 18`, `lapse_ledger_changes_total 19`, `lapse_ledger_repeats_total 20`,
		`lapse_ledger_queued 21`, `lapse_arena_bytes 22`, `lapse_arena_live_bytes 23`,
		`lapse_clock_steps_total 24`, `lapse_wheel_armed 26`, `lapse_ledger_unknown_records 25`,
		`lapse_nodes{state="live"} 2`, `lapse_nodes{state="draining"} 1`, `lapse_nodes{state="silent"} 1`, `lapse_nodes{state="released"} 2`,
		`lapse_shards{kind="own"} 41`, `lapse_shards{kind="adopted"} 9`, `lapse_shards{kind="away"} 7`,
		`lapse_shards_gained_total 42`, `lapse_shards_yielded_total 43`, `lapse_shards_lost_total 44`, `lapse_shards_tasks_left_total 45`,
		`lapse_unsure 1`, `lapse_deliveries_unsure_total 46`, `lapse_deliveries_lost_total 47`, `lapse_draining 1`,
		`lapse_relay_asked_total 51`, `lapse_relay_asked_failed_total{outcome="unanswered"} 52`, `lapse_relay_asked_failed_total{outcome="unheard"} 53`,
		`lapse_relay_asked_failed_total{outcome="overloaded"} 54`, `lapse_relay_resent_total 55`, `lapse_relay_answered_total 56`,
		`lapse_relay_refused_total 57`, `lapse_relay_asking 58`, `lapse_relay_answering 59`,
		`lapse_nodes_reserves_total{side="given"} 40`, `lapse_nodes_reserves_total{side="taken"} 41`,
		`lapse_coalesce_held_back 72`, `lapse_coalesce_skipped_total 73`,
		`lapse_settlements_dropped_total 44`, `lapse_nodes_help_total{side="given"} 42`, `lapse_nodes_help_total{side="taken"} 43`,
		`lapse_event_streams 38`, `lapse_events_lost_total 39`,
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	if !strings.Contains(got, "\ngo_goroutines ") {
		t.Error("no metrics of the Go runtime")
	}
}

func TestTopicsBeyondTheBoundAreAddedUp(t *testing.T) {
	var topics []task.Topic
	for i := range MaxTopics {
		c := tasks.Counts{Pending: 1, Scheduled: 2}
		c.Lateness.Counts[1] = 1
		topics = append(topics, task.Topic{Name: fmt.Sprintf("t%06d", i), Counts: c})
	}
	others := tasks.Counts{Pending: 5, Scheduled: 10}
	others.Lateness.Counts[1] = 5
	got := scrape(t, tasks.Stats{Topics: topics, Others: others, Beyond: 5})
	if n := strings.Count(got, "\nlapse_tasks_scheduled_total{"); n != MaxTopics+1 {
		t.Errorf("%d topics are shown, want %d and the others", n, MaxTopics)
	}
	for _, line := range []string{
		`lapse_tasks{state="pending",topic="_other"} 5`,
		`lapse_tasks_scheduled_total{topic="_other"} 10`,
		`lapse_lateness_seconds_count{topic="_other"} 5`,
		`lapse_tasks_scheduled_total{topic="t000001"} 2`,
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}

// A field of Counts that add forgets would be missing in the sum.
func TestAddKnowsEveryCount(t *testing.T) {
	var c, sum tasks.Counts
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Int64 {
			f.SetInt(int64(i + 1))
		}
	}
	for i := range c.Lateness.Counts {
		c.Lateness.Counts[i] = 3
	}
	c.Lateness.Sum, c.DeadOldest = time.Second, time.UnixMilli(5)
	sum.Add(&c)
	if sum != c {
		t.Errorf("the sum of one topic is %+v, want %+v", sum, c)
	}
}

func TestDescribeListsWhatCollectSends(t *testing.T) {
	described := make(map[string]bool)
	for _, d := range all {
		described[d.String()] = true
	}
	ch := make(chan prometheus.Metric, 1000)
	ways := []tasks.WayStats{{Kind: "webhook", Outcomes: map[string]int64{"2xx": 1}}}
	durations := tasks.Took{Attempts: map[tasks.Kind]tasks.Latency{"webhook": {}}}
	(&Collector{source: fixed{Topics: []task.Topic{{Name: "a"}}, Ways: ways, Took: durations}, server: server{}, port: port{}, log: readLog(3)}).Collect(ch)
	close(ch)
	sent := make(map[string]bool)
	for m := range ch {
		sent[m.Desc().String()] = true
	}
	if !reflect.DeepEqual(described, sent) {
		t.Errorf("described %d metrics, sent %d", len(described), len(sent))
	}
}

// counted counts how often it is asked for the nodes.
type counted struct {
	fixed
	asked int
	err   error
}

func (c *counted) Nodes(ctx context.Context) ([]tasks.Node, error) {
	c.asked++
	all, _ := c.fixed.Nodes(ctx)
	return all, c.err
}

// Many scrapes cost the ledger no more than one.
func TestNodesAreRemembered(t *testing.T) {
	var n nodes
	source := &counted{}
	now := time.UnixMilli(1_000_000)
	for range 3 {
		if got := n.byState(source, now); got[tasks.NodeLive] != 2 || source.asked != 1 {
			t.Errorf("got %v, and the ledger was asked %d times", got, source.asked)
		}
		now = now.Add(nodesFor / 4)
	}
	source.err = errors.New("no answer")
	if got := n.byState(source, now.Add(nodesFor)); got != nil || source.asked != 2 {
		t.Errorf("got %v", got)
	}
}

// promtool check metrics has nothing to say: it refuses, say, a label quantile of a gauge.
func TestPromlint(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	ways := []tasks.WayStats{{Kind: "webhook", Outcomes: map[string]int64{"2xx": 1}}}
	registry.MustRegister(&Collector{source: fixed{Topics: []task.Topic{{Name: "a"}}, Ways: ways}, server: server{}, port: port{}})
	families, err := registry.Gather()
	if err != nil || len(families) < len(all)/2 {
		t.Fatalf("%d families, %v", len(families), err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
