package task

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Diagnosis says what is wrong with a fleet at one moment, as one node sees it. The dashboard,
// `lapse top` and the API show the same one.
type Diagnosis struct {
	At       time.Time
	Headline string // a sentence about all that is grave, or that nothing is late
	Fleet    string // a sentence about the ledger and the nodes alone
	// Troubles are causes before consequences: the ledger, nodes, topics; then what is no trouble
	// yet, or meant. Of topics they are the worst.
	Troubles []Trouble
	// MoreTopics: there are topics beyond those that were looked at, and the trouble of the last of
	// these is grave. So there may be more.
	MoreTopics bool
}

// MaxDiagnosed bounds how many topics a Diagnosis tells of.
const MaxDiagnosed = 20

// A Trouble is one thing that is wrong, or that a reader of figures must know.
type Trouble struct {
	Kind TroubleKind
	// Grave: tasks are late or fail because of it, or would be with the next fault, or it is not
	// known whether they are.
	Grave  bool
	Node   string    // that it is about; empty: the ledger, a topic, or nodes that are not known
	Topic  string    // that it is about; empty: the ledger, or nodes
	Since  time.Time // zero: not known
	Text   string    // a sentence without its capital and its full stop
	Detail string    // why, as far as that is known: an error, or what it means; empty: nothing
}

// A TroubleKind says what is wrong.
type TroubleKind string

// The kinds of troubles, those first that cause others.
const (
	// TroubleLedger: it does not answer writes, or the reads by which nodes see one another.
	TroubleLedger TroubleKind = "ledger"
	// TroubleRefusing: the ledger answers, and takes no new tasks.
	TroubleRefusing TroubleKind = "refusing"
	// TroubleCutOff: a node is cut off from the ledger, and may have lost its shards.
	TroubleCutOff TroubleKind = "cut_off"
	// TroubleUnknown: nothing is known of a node, since the ledger does not answer.
	TroubleUnknown TroubleKind = "unknown"
	// TroubleSilent: a node sends no heartbeat, and its tasks wait.
	TroubleSilent TroubleKind = "silent"
	// TroubleUnheard: a node does not answer, or its figures are not complete.
	TroubleUnheard TroubleKind = "unheard"
	// TroubleSpool: a former spool of a node is missing.
	TroubleSpool TroubleKind = "spool"
	// TroubleAdopted: a node is down, and others have its tasks.
	TroubleAdopted TroubleKind = "adopted"
	// TroubleUndeliverable: a topic has nothing that delivers its tasks.
	TroubleUndeliverable TroubleKind = "undeliverable"
	// TroubleLate: a topic has a task that has been overdue for LateAfter.
	TroubleLate TroubleKind = "late"
	// TroubleFailing: attempts of a topic failed in the last RecentTime, or tasks of it are overdue
	// after an attempt that failed.
	TroubleFailing TroubleKind = "failing"
	// TroubleAhead: more falls due in the next day than receivers have shown to deliver in time.
	TroubleAhead TroubleKind = "ahead"
	// TroubleReplaying: a node reads its tasks.
	TroubleReplaying TroubleKind = "replaying"
	// TroubleDraining: a node hands its shards over.
	TroubleDraining TroubleKind = "draining"
	// TroubleDead: a topic has dead tasks.
	TroubleDead TroubleKind = "dead"
	// TroublePaused: a topic is paused.
	TroublePaused TroubleKind = "paused"
)

// TroubleKinds are all kinds there are, in the order of a Diagnosis.
var TroubleKinds = func() (kinds []TroubleKind) {
	for i := range troubles {
		kinds = append(kinds, troubles[i].kind)
	}
	return kinds
}()

// troubles says of each kind whether it is grave, what its subjects are, and the sentences about
// one subject and about several.
var troubles = []struct {
	kind      TroubleKind
	grave     bool
	of        string
	one, many string
}{
	{TroubleLedger, true, "", "the ledger does not answer", ""},
	{TroubleRefusing, true, "", "the ledger takes no new tasks", ""},
	{TroubleCutOff, true, "node", "%s is cut off from the ledger", "%s are cut off from the ledger"},
	{TroubleUnknown, true, "node", "nothing is known of %s", "nothing is known of %s"},
	{TroubleSilent, true, "node", "%s is down, and its tasks wait", "%s are down, and their tasks wait"},
	{TroubleUnheard, true, "node", "%s does not answer", "%s do not answer"},
	{TroubleSpool, true, "node", "a former spool of %s is missing, and may have tasks", "former spools of %s are missing, and may have tasks"},
	{TroubleAdopted, true, "node", "%s is down, and others have its tasks", "%s are down, and others have their tasks"},
	{TroubleUndeliverable, true, "topic", "%s cannot be delivered", "%s cannot be delivered"},
	{TroubleLate, true, "topic", "%s is late", "%s are late"},
	{TroubleFailing, true, "topic", "%s is failing", "%s are failing"},
	{TroubleAhead, false, "", "more falls due than is delivered in time", ""},
	{TroubleReplaying, false, "node", "%s reads its tasks", ""},
	{TroubleDraining, false, "node", "%s hands its tasks over", ""},
	{TroubleDead, false, "topic", "%s has dead tasks", ""},
	{TroublePaused, false, "topic", "%s is paused", ""},
}

// A Sight is what one node sees of a fleet.
type Sight struct {
	At        time.Time
	Readiness Readiness // of the node
	Nodes     []Node    // none: they are not known
	Reach     Reach     // of the figures of Topics
	Topics    []Topic   // as SortWorst orders them
	More      bool      // there are further topics
	Peaks     []Peak    // of the next day, that will wait
}

// Diagnose says what is wrong.
func (v *Sight) Diagnose() Diagnosis {
	d := Diagnosis{At: v.At}
	v.ofLedger(&d)
	for i := range v.Nodes {
		v.ofNode(&d, &v.Nodes[i])
	}
	v.ofReach(&d)
	wrong := false
	for i := range v.Topics {
		list := v.Topics[i].Troubles(v.At)
		for k := range list {
			if list[k].Kind == TroubleFailing {
				list[k].Detail += v.Reach.recent()
			}
		}
		d.Troubles = append(d.Troubles, list...)
		wrong = slices.ContainsFunc(list, func(t Trouble) bool { return t.Grave })
	}
	d.MoreTopics = v.More && wrong
	v.ofPeaks(&d)
	slices.SortStableFunc(d.Troubles, func(a, b Trouble) int {
		return cmp.Compare(slices.Index(TroubleKinds, a.Kind), slices.Index(TroubleKinds, b.Kind))
	})
	d.Headline, d.Fleet = d.sum(true), d.sum(false)
	reads := slices.ContainsFunc(d.Troubles, func(t Trouble) bool { return t.Kind == TroubleReplaying })
	switch {
	case d.Headline != "":
	case reads:
		d.Headline = "Nothing is late among the tasks that are read so far."
	default:
		d.Headline = "Nothing is late."
	}
	if d.Fleet == "" {
		d.Fleet = v.wholeFleet()
	}
	return d
}

// wholeFleet says that all nodes are there, if that is known.
func (v *Sight) wholeFleet() string {
	n := 0
	for i := range v.Nodes {
		if v.Nodes[i].State() != NodeReleased {
			n++
		}
	}
	switch n {
	case 0:
		return "Which nodes there are is not known."
	case 1:
		return "One node, and it is live."
	}
	return "All " + strconv.Itoa(n) + " nodes are there."
}

// newTrouble makes a trouble with the words of its kind.
func newTrouble(kind TroubleKind, subject string, since time.Time, detail string) Trouble {
	w := &troubles[slices.Index(TroubleKinds, kind)]
	text := w.one
	if w.of != "" {
		text = fmt.Sprintf(w.one, cmp.Or(subject, unnamed))
	}
	t := Trouble{Kind: kind, Grave: w.grave, Since: since, Text: text, Detail: detail}
	if w.of == "topic" {
		t.Topic = subject
	} else {
		t.Node = subject
	}
	return t
}

func (d *Diagnosis) add(kind TroubleKind, subject string, since time.Time, detail string) {
	d.Troubles = append(d.Troubles, newTrouble(kind, subject, since, detail))
}

func (v *Sight) ofLedger(d *Diagnosis) {
	r := &v.Readiness
	switch {
	case r.LedgerOK:
		v.ofPolls(d)
	case r.Storage.Err != nil:
		d.add(TroubleLedger, "", r.Storage.LastAnswer, r.Storage.Err.Error())
	case r.Stalled > 0:
		d.add(TroubleLedger, "", v.At.Add(-r.Stalled), r.Condition)
	default:
		d.add(TroubleRefusing, "", time.Time{}, r.Condition)
	}
}

// ofPolls tells that the ledger does not answer where only the look at other nodes has shown it so
// far: that is the cause of it that nothing is known of them.
func (v *Sight) ofPolls(d *Diagnosis) {
	var since time.Time
	for i := range v.Nodes {
		if n := &v.Nodes[i]; n.State() == NodeUnknown && v.At.Add(-n.Silent).After(since) {
			since = v.At.Add(-n.Silent)
		}
	}
	if !since.IsZero() {
		d.add(TroubleLedger, "", since, "the heartbeats of other nodes cannot be read")
	}
}

func (v *Sight) ofNode(d *Diagnosis, n *Node) {
	silent := v.At.Add(-n.Silent)
	switch shards := n.Held + n.Adopted; n.State() {
	case NodeUnknown:
		d.add(TroubleUnknown, n.Name, silent, "")
	case NodeSilent:
		switch {
		case n.Live: // none is adopted before the node counts as dead
			d.add(TroubleSilent, n.Name, silent, "others adopt them once it counts as dead")
		case shards > 0:
			d.add(TroubleSilent, n.Name, silent, "it counts as dead, and no node has adopted all of them yet")
		case n.Spools:
			d.add(TroubleSilent, n.Name, silent, "others have its shards; its spool may have tasks that no other node has: start it again")
		default:
			d.add(TroubleAdopted, n.Name, silent, "")
		}
	case NodeDraining:
		d.add(TroubleDraining, n.Name, time.Time{}, "")
	}
	told := n.Status != nil && (n.Self || n.State() == NodeLive || n.State() == NodeDraining)
	if told && n.Status.Unsure {
		d.add(TroubleCutOff, n.Name, time.Time{}, "other nodes may have adopted what it holds")
	}
	if told && n.Status.Catching {
		d.add(TroubleReplaying, n.Name, time.Time{}, unreadDetail)
	}
	if len(n.MissingSpools) > 0 {
		d.add(TroubleSpool, n.Name, time.Time{}, "start the node with it, or give it up: lapse nodes give-up-spools "+n.Name)
	}
}

// ofReach tells of the nodes that live and whose figures are missing. One that answers that it
// reads its tasks may not have said so with a heartbeat yet.
func (v *Sight) ofReach(d *Diagnosis) {
	for _, m := range v.Reach.Missing {
		reads := errors.Is(m.Err, ErrReplaying)
		told := slices.ContainsFunc(d.Troubles, func(t Trouble) bool {
			return t.Node == m.Node && m.Node != "" && (t.Grave || reads && t.Kind == TroubleReplaying)
		})
		switch {
		case told:
		case reads:
			d.add(TroubleReplaying, m.Node, time.Time{}, unreadDetail)
		default:
			d.add(TroubleUnheard, m.Node, time.Time{}, m.Err.Error())
		}
	}
}

// ofPeaks tells of the peak that will wait longest.
func (v *Sight) ofPeaks(d *Diagnosis) {
	var worst *Peak
	for i := range v.Peaks {
		if p := &v.Peaks[i]; v.At.Before(p.At) && (worst == nil || p.Wait > worst.Wait) {
			worst = p
		}
	}
	if worst != nil {
		d.add(TroubleAhead, "", time.Time{}, worst.When()+", "+worst.Text())
	}
}

const unreadDetail = "what it has not read is missing from the figures"

// Troubles says what is wrong with a topic at one moment, the worst first. A topic that is paused
// is not late: it waits because it was told to.
func (t *Topic) Troubles(at time.Time) (list []Trouble) {
	add := func(kind TroubleKind, since time.Time, detail string) {
		list = append(list, newTrouble(kind, t.Name, since, detail))
	}
	c := &t.Counts
	if t.Undeliverable != "" {
		add(TroubleUndeliverable, time.Time{}, t.Undeliverable)
	}
	if !c.OverdueOldest.IsZero() && at.Sub(c.OverdueOldest) >= LateAfter && !t.Settings.Paused {
		detail := counted(c.Overdue, "task") + " overdue"
		if c.OverdueRetrying > 0 {
			detail += ", " + strconv.FormatInt(c.OverdueRetrying, 10) + " of them after a failed attempt"
		}
		if t.Settings.Kind == Pull && c.Receivers == 0 && c.Delivering == 0 {
			detail += "; no receiver pulls"
		}
		add(TroubleLate, c.OverdueOldest, detail)
	}
	if c.FailedRecent > 0 || c.OverdueRetrying > 0 && !t.Settings.Paused {
		var since time.Time
		if c.OverdueRetrying > 0 {
			since = c.OverdueOldest
		}
		detail := c.succeeded()
		if t.LastError != "" {
			detail += ": " + t.LastError
		}
		add(TroubleFailing, since, detail)
	}
	if c.Dead > 0 {
		add(TroubleDead, c.DeadOldest, counted(c.Dead, "task"))
	}
	if t.Settings.Paused {
		detail := ""
		if c.Ready > 0 {
			detail = counted(c.Ready, "task") + " held back"
		}
		add(TroublePaused, c.OverdueOldest, detail)
	}
	return list
}

// succeeded says how many of the last attempts have succeeded.
func (c *Counts) succeeded() string {
	all := c.FailedRecent + c.DeliveredRecent
	if all == 0 {
		return "no attempt in the last 5 minutes"
	}
	return strconv.FormatInt(c.DeliveredRecent, 10) + " of " + counted(all, "attempt") + " of the last 5 minutes succeeded"
}

// sum sums the grave troubles up, one part a kind; "" if there are none.
func (d *Diagnosis) sum(withTopics bool) string {
	var parts []string
	first := "" // the name that the sentence begins with, if it does
	for i := range troubles {
		w := &troubles[i]
		var subjects []string
		for k := range d.Troubles {
			if t := &d.Troubles[k]; t.Grave && t.Kind == w.kind {
				subjects = append(subjects, cmp.Or(t.Node, t.Topic, unnamed))
			}
		}
		switch n := len(subjects); {
		case n == 0, w.of == "topic" && !withTopics:
		case w.of == "":
			parts = append(parts, w.one)
		case n == 1:
			parts = append(parts, fmt.Sprintf(w.one, subjects[0]))
		case w.of == "topic" && d.MoreTopics:
			parts = append(parts, fmt.Sprintf(w.many, "at least "+counted(int64(n), "topic")))
		case w.of == "topic":
			parts = append(parts, fmt.Sprintf(w.many, counted(int64(n), "topic")))
		default:
			parts = append(parts, fmt.Sprintf(w.many, named(subjects)))
		}
		if len(parts) == 1 && first == "" && len(subjects) > 0 && subjects[0] != unnamed {
			first = subjects[0]
		}
	}
	if len(parts) == 0 {
		return ""
	}
	text := strings.Join(parts, "; ") + "."
	if first != "" && strings.HasPrefix(text, first) {
		return text // names are written as they are
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// unnamed stands for nodes that are not known.
const unnamed = "the rest of the fleet"

// namedAtMost is how many nodes a sentence names.
const namedAtMost = 3

// named lists nodes.
func named(nodes []string) string {
	if more := len(nodes) - namedAtMost; more > 0 {
		nodes = append(slices.Clone(nodes[:namedAtMost]), counted(int64(more), "more node"))
	}
	last := len(nodes) - 1
	return strings.Join(nodes[:last], ", ") + " and " + nodes[last]
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatInt(n, 10) + " " + what + "s"
}
