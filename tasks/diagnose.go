package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/task"
)

// The kinds of troubles, those first that cause others.
const (
	TroubleLedger        = task.TroubleLedger
	TroubleRefusing      = task.TroubleRefusing
	TroubleCutOff        = task.TroubleCutOff
	TroubleUnknown       = task.TroubleUnknown
	TroubleSilent        = task.TroubleSilent
	TroubleUnheard       = task.TroubleUnheard
	TroubleSpool         = task.TroubleSpool
	TroubleAdopted       = task.TroubleAdopted
	TroubleUndeliverable = task.TroubleUndeliverable
	TroubleLate          = task.TroubleLate
	TroubleFailing       = task.TroubleFailing
	TroubleAhead         = task.TroubleAhead
	TroubleReplaying     = task.TroubleReplaying
	TroubleDraining      = task.TroubleDraining
	TroubleDead          = task.TroubleDead
	TroublePaused        = task.TroublePaused
)

// MaxDiagnosed bounds how many topics a Diagnosis tells of.
const MaxDiagnosed = task.MaxDiagnosed

// Diagnose says what is wrong with the fleet as this node sees it: with the ledger, with other
// nodes, with topics. It waits for GatherWithin three times at most, also while the ledger does not
// answer: then it says of which nodes nothing is known. The grant of ctx bounds the topics that it
// tells of, and a caller with some topics alone is not told of what falls due in the next day. That
// is judged about once a minute, and not before it is asked for.
//
// Errors: ErrClosed; why ctx has ended.
func (s Admin) Diagnose(ctx context.Context) (Diagnosis, Reach, error) {
	if s.engine.IsClosing() {
		return Diagnosis{}, Reach{}, ErrClosed
	}
	page, reach, err := s.FleetTopics(ctx, TopicQuery{Sort: SortWorst, Limit: MaxDiagnosed})
	if err != nil {
		return Diagnosis{}, Reach{}, err
	}
	sight := task.Sight{
		At: s.engine.Config.Clock(), Readiness: s.Readiness(), Nodes: s.cluster.Seen(ctx), Reach: reach,
		Topics: page.Topics, More: page.NextCursor != "",
	}
	if len(task.PatternsOf(ctx)) == 0 {
		sight.Peaks = s.cluster.Ahead(sight.At)
	}
	return sight.Diagnose(), reach, nil
}
