package campaign

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A plannedFault is one fault of one node, of Redis, or of all nodes.
type plannedFault struct {
	kind   *fault
	node   int           // -1: Redis, or all nodes
	at     time.Duration // after the beginning of the round
	length time.Duration // until it ends; of a loss, the time of lost writes
	reset  bool          // connections break, instead of hanging
}

func (m plannedFault) String() string {
	where := "all"
	if m.node >= 0 {
		where = nameOf(m.node)
	}
	return fmt.Sprintf("%s %s at %s for %s", where, m.kind.name, m.at.Round(time.Millisecond), m.length.Round(time.Millisecond))
}

// nameOf is the name of a node.
func nameOf(n int) string { return string(rune('a' + n)) }

// A round is one fault, or two that meet, after a rest. Callers prefer some features meanwhile.
type round struct {
	rest     time.Duration
	faults   []plannedFault
	features []string
}

func (r round) String() string {
	parts := make([]string, len(r.faults))
	for i, m := range r.faults {
		parts[i] = m.String()
	}
	return fmt.Sprintf("after %s: %s; above all %s", r.rest.Round(time.Millisecond), strings.Join(parts, ", "), strings.Join(r.features, ", "))
}

// settings are the input of a plan besides the seed.
type settings struct {
	nodes         int
	duration      time.Duration
	failoverAfter time.Duration
	faults        []string
	features      []string
}

// block is the number of seeds in a row whose plans complete each other: 1-20, 21-40 and so on.
const block = 20

// planOf makes the rounds of a seed, which take about the duration. It begins with the pairs of
// faults, and the pairs of a fault and a feature, that the seeds before it in its block have tried
// least. So a block tries each pair, as far as there is time, and a seed alone has the same plan as
// in its block.
func planOf(seed uint64, s settings) (rounds []round) {
	first := seed - (seed+block-1)%block // 1, 21, 41 and so on; seed 0 is in the block of 1
	if seed == 0 {
		first = 0
	}
	c := newCover(first, s)
	for i := range seed - first + 1 {
		rounds = c.plan(first + i)
	}
	return rounds
}

// A cover counts what plans have tried.
type cover struct {
	settings
	pairs [][2]string       // of faults, by name; the second is empty for a fault alone
	tried map[[2]string]int // pairs of faults, and of a feature and a fault
}

func newCover(first uint64, s settings) *cover {
	c := &cover{settings: s, tried: map[[2]string]int{}}
	for i, one := range s.faults {
		c.pairs = append(c.pairs, [2]string{one})
		for _, other := range s.faults[i:] {
			c.pairs = append(c.pairs, [2]string{one, other})
		}
	}
	rng := rand.New(rand.NewPCG(first, 3))
	rng.Shuffle(len(c.pairs), func(i, j int) { c.pairs[i], c.pairs[j] = c.pairs[j], c.pairs[i] })
	// A loss while another memory is about to take over is where most can break.
	slices.SortStableFunc(c.pairs, func(a, b [2]string) int { return rank(a) - rank(b) })
	return c
}

// rank orders pairs: those that a short run should not leave out come first.
func rank(pair [2]string) int {
	loses, moves := 0, 0
	for _, name := range pair {
		if name == "" {
			continue
		}
		if k := faultOf(name); k.loses {
			loses++
		} else if k.moves {
			moves++
		}
	}
	switch {
	case loses == 1 && moves == 1:
		return 0
	case loses == 1 && pair[1] == "":
		return 1
	}
	return 2
}

// plan makes the rounds of the next seed of the block.
func (c *cover) plan(seed uint64) (rounds []round) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for took := time.Duration(0); len(c.pairs) > 0 && took < c.duration; {
		pair := c.rarest(seed, len(rounds))
		c.tried[pair]++
		r := round{rest: 300*time.Millisecond + time.Duration(rng.Int64N(int64(1500*time.Millisecond)))}
		r.faults = c.faultsOf(rng, seed, pair)
		r.features = c.featuresOf(rng, pair)
		took += r.length(c.settings)
		rounds = append(rounds, r)
	}
	return rounds
}

// rarest is the pair that was tried least. Seeds begin at different ones of them, so that a short
// seed has some of each rank.
func (c *cover) rarest(seed uint64, n int) [2]string {
	best := -1
	for i := range c.pairs {
		pair := c.pairs[i]
		if !c.fits(pair) {
			continue
		}
		if best < 0 || c.tried[pair] < c.tried[c.pairs[best]] {
			best = i
		}
	}
	if n%3 == 2 { // the ranks that come last have their turn, too
		for i := len(c.pairs) - 1; i >= 0; i-- {
			if pair := c.pairs[i]; c.tried[pair] <= c.tried[c.pairs[best]] && c.fits(pair) {
				return pair
			}
		}
	}
	return c.pairs[best]
}

// fits reports whether there are nodes enough for a pair of faults. A node alone has none to hand
// its tasks to, so it is not drained.
func (c *cover) fits(pair [2]string) bool {
	return c.nodes > 1 || pair[1] == "" && pair[0] != "drain"
}

// faultsOf plans the faults of a pair, so that they meet.
func (c *cover) faultsOf(rng *rand.Rand, seed uint64, pair [2]string) []plannedFault {
	first := c.faultOf(rng, faultOf(pair[0]), c.nodesFor(pair[0], seed, -1))
	if pair[1] == "" {
		return []plannedFault{first}
	}
	k := faultOf(pair[1])
	nodes := c.nodesFor(pair[1], seed, first.node)
	if k.ofNode && len(nodes) == 0 {
		return []plannedFault{first}
	}
	second := c.faultOf(rng, k, nodes)
	if second.kind.loses && !first.kind.loses {
		first, second = second, first
	}
	switch {
	case first.kind.loses && second.kind.moves:
		// The writes are lost just after tasks have begun to move.
		gap := time.Duration(rng.Int64N(int64(400 * time.Millisecond)))
		if second.kind.adopted && second.length > c.failoverAfter {
			gap += c.failoverAfter // the others take over only then
			first.at = max(0, gap-first.length)
		}
		second.at = max(0, first.at+first.length-gap)
	case first.length > 0:
		second.at = time.Duration(rng.Int64N(int64(first.length)))
	default:
		second.at = time.Duration(rng.Int64N(int64(time.Second)))
	}
	return []plannedFault{first, second}
}

// faultOf chooses the node, and the length. Half of the faults that a process survives are over
// before other nodes may adopt its shards.
func (c *cover) faultOf(rng *rand.Rand, k *fault, nodes []int) plannedFault {
	m := plannedFault{kind: k, node: -1, reset: rng.IntN(2) == 0}
	if k.ofNode {
		m.node = nodes[rng.IntN(len(nodes))]
	}
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	short := rng.IntN(2) == 0
	long := c.failoverAfter + c.failoverAfter/2 + upTo(c.failoverAfter)
	switch {
	case k.loses && k.name != "flush":
		m.length = 200*time.Millisecond + upTo(1800*time.Millisecond)
	case k.instant:
	case k.name == "kill":
		if m.length = long; short {
			m.length = upTo(c.failoverAfter / 5)
		}
	default:
		if m.length = long; short {
			m.length = upTo(c.failoverAfter * 6 / 10)
		}
	}
	return m
}

// nodesFor lists the nodes that a fault may befall, without one of them.
func (c *cover) nodesFor(name string, seed uint64, not int) (list []int) {
	for n := range c.nodes {
		fits := name != "handover" && name != "restart" || handsOver(n, seed) == (name == "handover") || c.nodes == 1
		if n != not && fits {
			list = append(list, n)
		}
	}
	return list
}

// handsOver reports whether a node is started with --handover: every other one is.
func handsOver(node int, seed uint64) bool { return (uint64(node)+seed)%2 == 0 }

// featuresOf chooses the features that were tried least with these faults.
func (c *cover) featuresOf(rng *rand.Rand, pair [2]string) (names []string) {
	all := slices.Clone(c.features)
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	tried := func(feature string) int {
		return c.tried[[2]string{feature, pair[0]}] + c.tried[[2]string{feature, pair[1]}]
	}
	slices.SortStableFunc(all, func(a, b string) int { return tried(a) - tried(b) })
	names = all[:min(4, len(all))]
	for _, name := range names {
		for _, f := range pair {
			c.tried[[2]string{name, f}]++
		}
	}
	slices.Sort(names)
	return names
}

// length is about how long a round takes.
func (r round) length(s settings) time.Duration {
	most := time.Duration(0)
	for _, m := range r.faults {
		l := m.at + m.length
		switch {
		case m.kind.loses:
			l += notice(s.failoverAfter) + time.Second
		case m.kind.name == "roll":
			l += time.Duration(s.nodes) * 2 * time.Second
		}
		most = max(most, l)
	}
	return r.rest + most + time.Second
}

// notice is how long it takes until all nodes have noticed that Redis has lost writes, and have
// written them again.
func notice(failoverAfter time.Duration) time.Duration { return failoverAfter + 2*time.Second }
