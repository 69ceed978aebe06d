package redisledger

import "sync"

// maxMissing bounds how many ids without a record are remembered.
const maxMissing = 10_000

// missing are ids of a shard that were read and have no record. Those that a scan found in the
// set of the shard are removed from it at the end of the scan.
type missing struct {
	mu  sync.Mutex // guards ids
	ids []string
}

func (m *missing) note(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ids) < maxMissing {
		m.ids = append(m.ids, id)
	}
}

func (m *missing) take() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := m.ids
	m.ids = nil
	return ids
}
