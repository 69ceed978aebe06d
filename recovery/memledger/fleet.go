package memledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// A Fleet is what several nodes of one process share: for tests of whatever works
// with a [recovery.Fleet]. Nothing in it goes by time. Who dies, who adopts, who is cut
// off and who is not certain is said by the test.
type Fleet struct {
	mu       sync.Mutex // guards everything below, and all of the members
	members  map[string]*Member
	shards   map[recovery.Home]*fleetShard
	filings  map[string]recovery.Filing
	settings *Ledger // keeps what the nodes share besides
	drop     func(from, to string, message []byte) bool
}

// A fleetShard is one shard's records, whoever holds it.
type fleetShard struct {
	shard
	home   recovery.Home
	holder *Member // nil: nobody ever has
}

// NewFleet makes a fleet without nodes.
func NewFleet() *Fleet {
	settings := New()
	settings.s.owner = settings
	return &Fleet{
		members:  map[string]*Member{},
		shards:   map[recovery.Home]*fleetShard{},
		filings:  map[string]recovery.Filing{},
		settings: settings,
	}
}

// Drop has every message asked for whether it is lost on its way.
func (f *Fleet) Drop(drop func(from, to string, message []byte) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop = drop
}

// Holder names the node that holds a shard; empty if nobody does.
func (f *Fleet) Holder(home recovery.Home) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.shards[home]; s != nil && s.holder != nil {
		return s.holder.name
	}
	return ""
}

// A Member is one process in a fleet. It implements recovery.Fleet, Settings, Finder,
// Directory and Bus.
type Member struct {
	f      *Fleet
	name   string
	number uint16
	count  int // of its own shards

	tenures   []*fleetShard // by number; nil: lost, yielded or forgotten
	homes     []recovery.Home
	forgotten []bool
	adopted   bool
	dead      bool
	cut       bool // reaches neither the records nor the others
	uncertain bool
	unindexed bool
	suspect   bool // it has gained shards of which ids may not be filed
	watcher   recovery.Watcher
	receive   func([]byte)

	news *news
}

// Join makes a process that goes by name, with so many shards of its own. The one that
// went by that name before is dead from now on.
func (f *Fleet) Join(name string, shards int) *Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := &Member{f: f, name: name, count: shards, number: uint16(len(f.members) + 1), news: newNews()}
	if before := f.members[name]; before != nil {
		before.dieLocked()
		m.number, m.count = before.number, max(shards, before.count)
	}
	f.members[name] = m
	return m
}

// Crash ends a process without any clean-up.
func (m *Member) Crash() {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.dieLocked()
}

func (m *Member) dieLocked() {
	if !m.dead {
		m.dead = true
		m.news.end()
	}
}

// Cut cuts a process off from the records and from the others, or heals that. One
// that is cut off does not notice what it loses.
func (m *Member) Cut(cut bool) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.cut = cut
	if cut {
		return
	}
	for n, s := range m.tenures {
		if s != nil && s.holder != m {
			m.loseLocked(n)
		}
	}
}

// Uncertain makes Standing say so.
func (m *Member) Uncertain(uncertain bool) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.uncertain = uncertain
}

// AdoptFrom has a process adopt what another one holds, dead or not, as far as its
// memory has room. It returns how many shards that were.
func (m *Member) AdoptFrom(other *Member) int {
	m.f.mu.Lock()
	room := m.watcher.Room
	m.f.mu.Unlock()
	left := -1
	if room != nil {
		left = room()
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	count := 0
	for _, home := range slices.Sorted(maps.Keys(m.f.shards)) {
		s := m.f.shards[home]
		if s.holder != other || left >= 0 && len(s.pending) > left {
			continue
		}
		left -= len(s.pending)
		if n := slices.Index(other.tenures, s); n >= 0 && !other.cut && !other.dead {
			other.loseLocked(n)
		}
		m.gainLocked(s)
		count++
	}
	return count
}

func (m *Member) gainLocked(s *fleetShard) {
	s.holder = m
	n := m.takeLocked(s)
	for _, o := range m.f.members {
		if o != m && o.unindexed {
			m.unindexed, m.suspect = true, true
		}
	}
	m.news.add(func(w recovery.Watcher) {
		if w.Gained != nil {
			w.Gained(n)
		}
	}, m)
}

// takeLocked gives a shard a number.
func (m *Member) takeLocked(s *fleetShard) int {
	n := slices.Index(m.forgotten, true)
	if n < 0 {
		n = len(m.tenures)
		m.tenures, m.homes, m.forgotten = append(m.tenures, nil), append(m.homes, 0), append(m.forgotten, false)
	}
	m.tenures[n], m.homes[n], m.forgotten[n] = s, s.home, false
	return n
}

func (m *Member) loseLocked(n int) {
	m.tenures[n] = nil
	err := m.lost(n)
	m.news.add(func(w recovery.Watcher) {
		if w.Lost != nil {
			w.Lost(n, err)
		}
	}, m)
}

func (m *Member) lost(n int) error {
	return fmt.Errorf("%w: shard %d of node %s", recovery.ErrLost, n, m.name)
}

// lock locks the fleet for a call, or says why the call must fail.
func (m *Member) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.f.mu.Lock()
	switch {
	case m.dead || !m.adopted:
		m.f.mu.Unlock()
		return fmt.Errorf("memory ledger of node %s: %w", m.name, recovery.ErrClosed)
	case m.cut:
		m.f.mu.Unlock()
		return errCut
	}
	return nil
}

var errCut = errors.New("memory ledger: cut off")

// lockShard is lock for a call that concerns one shard.
func (m *Member) lockShard(ctx context.Context, n int) (*fleetShard, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	if s := m.tenures[n]; s != nil && s.holder == m {
		return s, nil
	}
	if m.tenures[n] != nil {
		m.loseLocked(n)
	}
	m.f.mu.Unlock()
	return nil, m.lost(n)
}

// Watch implements recovery.Rewinder.
func (m *Member) Watch(w recovery.Watcher) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.watcher = w
}

// Adopt implements recovery.Ledger.
func (m *Member) Adopt(context.Context) (recovery.Terms, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.adopted = true
	go m.news.run()
	var away []recovery.Home
	for i := range m.count {
		home := recovery.NewHome(m.number, i)
		s := m.f.shards[home]
		if s == nil {
			s = &fleetShard{home: home, shard: shard{pending: map[string]record{}, dead: map[string]record{}}}
			m.f.shards[home] = s
		}
		if s.holder != nil && s.holder.name != m.name {
			away = append(away, home)
			continue
		}
		s.holder = m
		m.takeLocked(s)
	}
	// What an earlier process of this name had adopted.
	for _, s := range m.f.shards {
		if s.home.Node() != m.number && s.holder != nil && s.holder.name == m.name && s.holder != m {
			s.holder = m
			m.takeLocked(s)
		}
	}
	return recovery.Terms{
		Shards: len(m.tenures), ShardOf: m.shardOf, Away: away,
		MaxChanges: 1024, MaxBytes: 1 << 20,
	}, nil
}

// shardOf finds the tenure for a new record.
func (m *Member) shardOf(id []byte) int {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	home, tells := recovery.HomeOf(string(id))
	if !tells || m.f.shards[home] == nil {
		sum := 0
		for _, b := range id {
			sum = sum*31 + int(b)
		}
		home = recovery.NewHome(m.number, (sum&0xffff)%m.count)
	}
	return m.tenureLocked(home)
}

func (m *Member) tenureLocked(home recovery.Home) int {
	return slices.IndexFunc(m.tenures, func(s *fleetShard) bool { return s != nil && s.home == home && s.holder == m })
}

// Apply implements recovery.Ledger.
func (m *Member) Apply(ctx context.Context, n int, b *recovery.Batch) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	s.apply(b, true)
	return nil
}

// Get implements recovery.Ledger.
func (m *Member) Get(ctx context.Context, n int, refs []recovery.Ref, found func(i int, e recovery.Entry)) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	var hits []hit
	for i, ref := range refs {
		if r, ok := s.pending[ref.ID]; ok {
			hits = append(hits, hit{i, entry{n, ref.ID, r}})
		}
	}
	m.f.mu.Unlock()
	for _, h := range hits {
		found(h.i, h.handOut())
	}
	return nil
}

// Find implements recovery.Finder.
func (m *Member) Find(ctx context.Context, id string, found func(e recovery.Entry)) error {
	return m.lookUp(ctx, []string{id}, func(s *fleetShard) map[string]record { return s.pending }, func(_ int, e recovery.Entry) { found(e) })
}

// GetDead implements recovery.Ledger.
func (m *Member) GetDead(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	return m.lookUp(ctx, ids, func(s *fleetShard) map[string]record { return s.dead }, found)
}

func (m *Member) lookUp(ctx context.Context, ids []string, in func(*fleetShard) map[string]record, found func(i int, e recovery.Entry)) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	var hits []hit
	for n, s := range m.tenures {
		if s == nil || s.holder != m {
			continue
		}
		for i, id := range ids {
			if r, ok := in(s)[id]; ok {
				hits = append(hits, hit{i, entry{n, id, r}})
			}
		}
	}
	m.f.mu.Unlock()
	for _, h := range hits {
		found(h.i, h.handOut())
	}
	return nil
}

// Scan implements recovery.Ledger. It only nominates.
func (m *Member) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	m.f.mu.Lock()
	count := len(m.tenures)
	m.f.mu.Unlock()
	for n := range count {
		if err := m.ScanShard(ctx, n, page); err != nil && !errors.Is(err, recovery.ErrLost) {
			return err
		}
	}
	return nil
}

// ScanShard implements recovery.Rewinder.
func (m *Member) ScanShard(ctx context.Context, n int, page func([]recovery.Entry) error) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	var all []recovery.Entry
	for id, r := range s.pending {
		e := entry{n, id, r}.handOut()
		e.Data = nil
		all = append(all, e)
	}
	m.f.mu.Unlock()
	for chunk := range slices.Chunk(all, pageSize) {
		if err := page(chunk); err != nil {
			return err
		}
	}
	_, err = m.lockShard(ctx, n)
	if err == nil {
		m.f.mu.Unlock()
	}
	return err
}

// ScanDead implements recovery.DeadScanner.
func (m *Member) ScanDead(ctx context.Context, n int, page func([]recovery.Entry) error) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	var all []recovery.Entry
	for id, r := range s.dead {
		e := entry{n, id, r}.handOut()
		e.Data = nil
		all = append(all, e)
	}
	m.f.mu.Unlock()
	for chunk := range slices.Chunk(all, pageSize) {
		if err := page(chunk); err != nil {
			return err
		}
	}
	return nil
}

// ListDead implements recovery.Ledger.
func (m *Member) ListDead(ctx context.Context, label string, after recovery.Ref, visit func(e recovery.Entry) bool) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	var all []entry
	for n, s := range m.tenures {
		if s != nil && s.holder == m {
			all = append(all, s.buried(n, label, after)...)
		}
	}
	m.f.mu.Unlock()
	visitDead(all, visit)
	return nil
}

// Close implements recovery.Ledger.
func (m *Member) Close() error {
	m.Crash()
	return nil
}

// Home implements recovery.Fleet.
func (m *Member) Home(n int) recovery.Home {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	return m.homes[n]
}

// Locate implements recovery.Fleet.
func (m *Member) Locate(ctx context.Context, home recovery.Home, _ bool) (recovery.Holder, error) {
	if err := m.lock(ctx); err != nil {
		return recovery.Holder{}, err
	}
	defer m.f.mu.Unlock()
	s := m.f.shards[home]
	if s == nil || s.holder == nil {
		return recovery.Holder{Shard: -1}, nil
	}
	return recovery.Holder{Shard: m.tenureLocked(home), Node: s.holder.name, Live: !s.holder.dead}, nil
}

// Standing implements recovery.Fleet.
func (m *Member) Standing() recovery.Standing {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	alone := len(m.f.members) == 1
	return recovery.Standing{Alone: alone, Certain: alone || !m.uncertain}
}

// Nodes implements recovery.Fleet.
func (m *Member) Nodes(ctx context.Context) ([]recovery.Node, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	members := slices.SortedFunc(maps.Values(m.f.members), func(a, b *Member) int { return cmp.Compare(a.name, b.name) })
	nodes := make([]recovery.Node, len(members))
	asks := make([]func() []byte, len(members))
	for i, o := range members {
		nodes[i] = recovery.Node{Name: o.name, Number: o.number, Self: o == m, Live: !o.dead, Shards: o.count, Indexed: !o.unindexed}
		asks[i] = o.watcher.Status
		for _, s := range m.f.shards {
			if s.holder == o && s.home.Node() == o.number {
				nodes[i].Held++
			} else if s.holder == o {
				nodes[i].Adopted++
			}
		}
	}
	m.f.mu.Unlock()
	for i, ask := range asks {
		if ask != nil && nodes[i].Live {
			nodes[i].Status = ask()
		}
	}
	return nodes, nil
}

// Yield implements recovery.Fleet.
func (m *Member) Yield(ctx context.Context, n int, to string) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	heir := m.f.members[to]
	if heir == nil || heir.dead {
		return fmt.Errorf("memory ledger: node %s does not live", to)
	}
	s.holder, m.tenures[n] = heir, nil
	return nil
}

// Accept implements recovery.Fleet.
func (m *Member) Accept(ctx context.Context, home recovery.Home) (bool, error) {
	if err := m.lock(ctx); err != nil {
		return false, err
	}
	defer m.f.mu.Unlock()
	s := m.f.shards[home]
	if s == nil || s.holder != m {
		return false, nil
	}
	if m.tenureLocked(home) < 0 {
		m.gainLocked(s)
	}
	return true, nil
}

// Forget implements recovery.Fleet.
func (m *Member) Forget(n int) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if m.tenures[n] == nil {
		m.forgotten[n] = true
	}
}

// Look implements recovery.Directory.
func (m *Member) Look(ctx context.Context, ids []string) ([]recovery.Filing, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	found := make([]recovery.Filing, len(ids))
	for i, id := range ids {
		found[i] = m.f.filings[id]
	}
	return found, nil
}

// File implements recovery.Directory.
func (m *Member) File(ctx context.Context, changes []recovery.Refiling) ([]recovery.Filing, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	now := make([]recovery.Filing, len(changes))
	for i, c := range changes {
		if m.f.filings[c.ID] == c.Old {
			m.f.filings[c.ID] = c.New
		}
		now[i] = m.f.filings[c.ID]
		if now[i] == (recovery.Filing{}) {
			delete(m.f.filings, c.ID)
		}
	}
	return now, nil
}

// ScanFilings implements recovery.FilingScanner.
func (m *Member) ScanFilings(ctx context.Context, position string, visit func(id string, f recovery.Filing)) (string, error) {
	if err := m.lock(ctx); err != nil {
		return "", err
	}
	ids := slices.Sorted(maps.Keys(m.f.filings))
	from, found := slices.BinarySearch(ids, position)
	if found {
		from++
	}
	ids = ids[from:min(from+pageSize, len(ids))]
	filings := make([]recovery.Filing, len(ids))
	for i, id := range ids {
		filings[i] = m.f.filings[id]
	}
	m.f.mu.Unlock()
	for i, id := range ids {
		visit(id, filings[i])
	}
	if len(ids) < pageSize {
		return "", nil
	}
	return ids[len(ids)-1], nil
}

// MarkIndexed implements recovery.Directory. A member is indexed until it says otherwise.
func (m *Member) MarkIndexed(ctx context.Context, indexed bool) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	if indexed && m.suspect {
		m.suspect = false
		return errors.New("shards were gained whose ids may not be filed")
	}
	m.unindexed = !indexed
	return nil
}

// Unindexed implements recovery.Directory.
func (m *Member) Unindexed(ctx context.Context) ([]string, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	var names []string
	for name, o := range m.f.members {
		if o != m && o.unindexed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Listen implements recovery.Bus.
func (m *Member) Listen(receive func(message []byte)) error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.receive = receive
	return nil
}

// Send implements recovery.Bus.
func (m *Member) Send(ctx context.Context, node string, message []byte) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	heard := false
	for name, o := range m.f.members {
		if o == m || node != "" && name != node || o.dead || o.cut || o.receive == nil {
			continue
		}
		heard = true
		if m.f.drop == nil || !m.f.drop(m.name, name, message) {
			o.news.add(func(recovery.Watcher) { o.receive(slices.Clone(message)) }, o)
		}
	}
	if !heard && node != "" {
		return fmt.Errorf("memory ledger: node %s: %w", node, recovery.ErrUnheard)
	}
	return nil
}

// Setting implements recovery.Settings.
func (m *Member) Setting(ctx context.Context, name string) ([]byte, int64, error) {
	if err := m.reach(ctx); err != nil {
		return nil, 0, err
	}
	return m.f.settings.Setting(ctx, name)
}

// PutSetting implements recovery.Settings.
func (m *Member) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error) {
	if err := m.reach(ctx); err != nil {
		return 0, err
	}
	return m.f.settings.PutSetting(ctx, name, ifRevision, value)
}

// EachSetting implements recovery.Settings.
func (m *Member) EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error {
	if err := m.reach(ctx); err != nil {
		return err
	}
	return m.f.settings.EachSetting(ctx, prefix, visit)
}

func (m *Member) reach(ctx context.Context) error {
	err := m.lock(ctx)
	if err == nil {
		m.f.mu.Unlock()
	}
	return err
}

// news are calls of a member's watcher and receiver, one after another.
type news struct {
	mu    sync.Mutex // guards everything below
	calls []func()
	wake  chan struct{}
	over  bool
}

func newNews() *news { return &news{wake: make(chan struct{}, 1)} }

func (n *news) add(call func(recovery.Watcher), m *Member) {
	n.mu.Lock()
	n.calls = append(n.calls, func() {
		m.f.mu.Lock()
		w := m.watcher
		m.f.mu.Unlock()
		call(w)
	})
	n.mu.Unlock()
	n.signal()
}

func (n *news) end() {
	n.mu.Lock()
	n.over = true
	n.mu.Unlock()
	n.signal()
}

func (n *news) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *news) run() {
	for range n.wake {
		for {
			n.mu.Lock()
			if n.over {
				n.mu.Unlock()
				return
			}
			if len(n.calls) == 0 {
				n.mu.Unlock()
				break
			}
			call := n.calls[0]
			n.calls = n.calls[1:]
			n.mu.Unlock()
			call()
		}
	}
}
