package tasks

import (
	"context"
)

// Drain hands everything over that this node holds: it accepts no new tasks from now on
// (ErrDraining), adopts nothing, waits until the ledger has what is in its spool, and has the
// other nodes that live take its shards, evenly, those that are still being read after that.
// Deliveries that are open count where their tasks are then. It returns once nothing is
// held any more and what handlers of this process were doing for it is over, or at the end
// of Config.Grace. Then there is nothing left that Close would wait for.
//
// What it began stays, also after an error: called again it goes on, and only a restart
// ends it. Errors: ErrNoSuccessor when there is no other node that could take anything, which
// changes nothing if it is so from the beginning; ErrUnavailable when the ledger does not
// take what is in the spool; ErrClosed; or why ctx ended.
func (s *Scheduler) Drain(ctx context.Context) error {
	return s.cluster.DrainNode(ctx)
}
