package cluster

import (
	"context"
	"time"
)

// SettingsMethod is called at all nodes once settings were changed. They hold at a node that has
// answered. So what a caller has set holds for its next call, whichever node gets that.
var SettingsMethod = Method[settingsQuery, struct{}]{Name: "settings"}

type settingsQuery struct{}

// settingsWithin bounds how long a change of settings waits for the other nodes. A node that has
// not answered takes it over by itself as soon as it reads the ledger again.
const settingsWithin = 500 * time.Millisecond

// TellSettings tells all nodes that settings were changed, and waits for those that answer.
func (s *Cluster) TellSettings(ctx context.Context) {
	if s.NoPeers() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settingsWithin)
	defer cancel()
	askEach(ctx, s, s.LivePeers(), SettingsMethod, settingsQuery{}, func(string, struct{}, error) {})
}

func (s *Cluster) handleSettings(ctx context.Context, _ string, _ settingsQuery) (struct{}, error) {
	ctx, cancel := context.WithTimeout(ctx, settingsWithin) // for as long as the caller waits
	defer cancel()
	s.engine.RefreshSettings(ctx)
	return struct{}{}, nil
}
