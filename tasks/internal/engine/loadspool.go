package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// loadSpool reads the tasks of the spool into memory. It deletes the records of tasks that the last
// process moved to the ledger: the ledger knows better what has become of these tasks.
func (s *Engine) loadSpool(ctx context.Context) error {
	loading := spoolLoading{Engine: s, ctx: ctx, marks: make(map[uint64]int64)}
	if err := s.Spool.ledger.Scan(ctx, loading.page); err != nil {
		return err
	}
	s.Mu.Lock()
	defer s.Unlock()
	for _, l := range s.Spool.Lines {
		sortLine(l)
	}
	if loading.moved > 0 {
		s.Config.Log.Info("the spool had tasks that the ledger got before", "node", s.Config.Node, "tasks", loading.moved)
	}
	return nil
}

type spoolLoading struct {
	*Engine
	ctx   context.Context
	marks map[uint64]int64 // by line
	moved int
}

func (x *spoolLoading) page(page []recovery.Entry) error {
	for _, e := range page {
		if e.Data != nil {
			if err := x.entry(e); err != nil {
				return err
			}
			continue
		}
		var inner error
		err := x.Spool.ledger.Get(x.ctx, e.Shard, []recovery.Ref{{ID: string(e.ID), Next: e.Spot.At}}, func(_ int, e recovery.Entry) {
			inner = x.entry(e)
		})
		if err = cmp.Or(err, inner); err != nil {
			return err
		}
	}
	return nil
}

func (x *spoolLoading) entry(e recovery.Entry) error {
	if len(e.Data) < numberLen {
		return fmt.Errorf("the record of %d bytes in the spool cannot be read", len(e.Data))
	}
	number := int64(binary.BigEndian.Uint64(e.Data))
	e.Data = e.Data[numberLen:]
	key := x.LineOf(e.ID)
	mark, known := x.marks[key]
	if !known {
		var err error
		if mark, err = x.Spool.successor.SpoolMark(x.ctx, x.Spool.id, string(e.ID)); err != nil {
			return fmt.Errorf("what the ledger got from the spool: %w", err)
		}
		x.marks[key] = mark
	}
	if number > mark && !x.learnTopicsOf(x.ctx, []recovery.Entry{e}) {
		return errSettingsUnread
	}
	x.Mu.Lock()
	defer x.Unlock()
	if number <= mark {
		x.moved++
		x.Spool.removeLocked(e.ID, e.Spot)
		return nil
	}
	x.readSpooledLocked(e, number)
	return nil
}

// readSpooledLocked takes a task up that the spool has, and the ledger has not.
func (s *Engine) readSpooledLocked(e recovery.Entry, number int64) {
	e.Shard = SpoolShard
	f, readable := s.readableLocked(&e)
	if !readable {
		s.Spool.LineLocked(s.LineOf(e.ID)).Blocked = true
		return
	}
	if _, conflicting := s.Store.Find(e.ID); conflicting {
		return // a scan that was begun anew
	}
	n, sl := s.Store.Enter(e.ID, e.Data)
	s.Spool.numbers[n] = number
	s.restoreLocked(n, sl, e, &f, s.Now())
	s.enterSpoolLocked(n, sl)
}

func sortLine(l *spoolLine) {
	slices.SortFunc(l.Items, func(a, b spooled) int { return cmp.Compare(a.number, b.number) })
}
