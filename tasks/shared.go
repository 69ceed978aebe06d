package tasks

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/relay"
)

// shared is what a scheduler has whose ledger several nodes share.
type shared struct {
	ledger sharedLedger
	relay  *relay.Relay
	node   string // this node's name in the ledger
	verbs  map[string]answerer
}

// A sharedLedger is one that several nodes share.
type sharedLedger interface {
	recovery.Fleet
	recovery.Directory
	recovery.Bus
}

// share begins to talk with the other nodes, if the ledger can have any. Who asks
// before Open has succeeded waits for that.
func (s *Scheduler) share(ctx context.Context) error {
	ledger, ok := s.ledger.(sharedLedger)
	if !ok {
		return nil
	}
	nodes, err := ledger.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("the nodes: %w", err)
	}
	s.shared = &shared{ledger: ledger, verbs: verbs()}
	for _, n := range nodes {
		if n.Self {
			s.shared.node = n.Name
		}
	}
	s.shared.relay, err = relay.New(relay.Config{
		Bus: ledger, Node: s.shared.node, Incarnation: uuid.NewString(),
		Answer: s.answer, Log: s.cfg.Log,
	})
	return err
}

// unshare ends it.
func (s *Scheduler) unshare() {
	if s.shared != nil && s.shared.relay != nil {
		s.shared.relay.Close()
	}
}
