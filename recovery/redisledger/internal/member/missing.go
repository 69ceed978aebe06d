package member

import "sync"

// maxMissing bounds how many ids without a record are remembered.
const maxMissing = 10_000

// missing are ids of a shard that were read and have no record. Those that a scan found in the
// set of the shard are removed from it at the end of the scan.
type missing struct {
	mu  sync.Mutex // guards ids
	ids []string
}

// Note remembers an id without a record, up to maxMissing of them.
func (m *missing) Note(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ids) < maxMissing {
		m.ids = append(m.ids, id)
	}
}

// Take returns the remembered ids, and forgets them.
func (m *missing) Take() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := m.ids
	m.ids = nil
	return ids
}
