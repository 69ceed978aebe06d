package cluster

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/relay"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Fleet is the part of a cluster that exists only if several nodes share its ledger.
type Fleet struct {
	ledger  sharedLedger
	Relay   *relay.Relay
	node    string // this node's name in the ledger
	Methods map[string]RPCHandler

	made          atomic.Uint32 // ids, which chooses among engine.MakingShards
	work          chan struct{} // wakes reconcilerLoop; holds one request
	feeds         eventFeeds    // events of this node for readers at others
	finishedCalls *finishedCalls
	multiNode     atomic.Bool          // callers' ids are registered before their tasks are created
	tombstones    tombstones           // directory entries of tasks that are gone
	recentCancels lately[recentCancel] // cancels that other nodes have confirmed
	conflict      lately[struct{}]     // ids of buried tasks, for which another node answers
	indexing      indexing
}

// A sharedLedger is a Fleet with a directory and a bus, as far as it is about the other nodes.
type sharedLedger interface {
	recovery.Membership
	recovery.Locator
	recovery.Directory
	recovery.Bus
}

// Share connects this node with the other nodes, if its ledger can have any. Their calls
// before Open has succeeded wait for that.
func (s *Cluster) Share(ctx context.Context) error {
	sh := s.Fleet
	if sh == nil {
		return nil
	}
	nodes, err := sh.ledger.Peers(ctx)
	if err != nil {
		return fmt.Errorf("the nodes: %w", err)
	}
	indexed := false
	for _, n := range nodes {
		if n.Self {
			sh.node, indexed = n.Name, n.Indexed
		}
	}
	// A single node registers nothing, and says so before: another one may join at any time.
	if sh.ledger.Standing().Alone {
		if err := sh.ledger.MarkIndexed(ctx, false); err != nil {
			return fmt.Errorf("directory of ids: %w", err)
		}
		indexed = false
	} else {
		sh.multiNode.Store(true)
	}
	if !indexed {
		sh.indexing.add(1, 0)
	}
	s.startPeerCalls()
	sh.Relay, err = relay.New(relay.Config{
		Bus: sh.ledger, Node: sh.node, Incarnation: uuid.NewString(),
		Answer: s.handleCall, Late: s.LateReply, InOrder: isMessage, Silence: s.engine.Config.AnswerWithin, Patience: s.engine.Config.AnswerWithin / engine.PatienceShare, Log: s.engine.Config.Log,
	})
	return err
}

// Leave closes the connection with the other nodes.
func (s *Cluster) Leave() {
	if s.Fleet != nil && s.Fleet.Relay != nil {
		s.Fleet.Relay.Close()
		s.Fleet.feeds.close()
	}
}

// idsInARow is how many ids go to one shard before the next: what is scheduled at the same time is
// written in few batches, and so is what falls due and ends at the same time.
const idsInARow = 64

// NewID makes an id as Schedule does, and returns the shard that it tells: 0 if the ledger has
// none.
func (s *Cluster) NewID() (string, recovery.ShardID) {
	if s.Fleet == nil {
		return task.NewID(), 0
	}
	shardIDs := s.engine.MakingShards()
	shardID := shardIDs[int(s.Fleet.made.Add(1)/idsInARow)%len(shardIDs)]
	return shardID.NewID(), shardID
}
