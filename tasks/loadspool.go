package tasks

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// loadSpool takes up what the spool has kept. What the ledger got before the last process
// ended is deleted: the ledger knows better what has become of it.
func (s *engine) loadSpool(ctx context.Context) error {
	loading := spoolLoading{engine: s, ctx: ctx, marks: make(map[uint64]int64)}
	if err := s.spool.ledger.Scan(ctx, loading.page); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.unlock()
	for _, l := range s.spool.lines {
		sortLine(l)
	}
	if loading.moved > 0 {
		s.cfg.Log.Info("the spool had tasks that the ledger got before", "node", s.cfg.Node, "tasks", loading.moved)
	}
	return nil
}

type spoolLoading struct {
	*engine
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
		err := x.spool.ledger.Get(x.ctx, e.Shard, []recovery.Ref{{ID: string(e.ID), Next: e.Spot.At}}, func(_ int, e recovery.Entry) {
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
	key := x.lineOf(e.ID)
	mark, known := x.marks[key]
	if !known {
		var err error
		if mark, err = x.spool.heir.Inherited(x.ctx, x.spool.id, string(e.ID)); err != nil {
			return fmt.Errorf("what the ledger got from the spool: %w", err)
		}
		x.marks[key] = mark
	}
	if number > mark && !x.learnTopicsOf(x.ctx, []recovery.Entry{e}) {
		return errSettingsUnread
	}
	x.mu.Lock()
	defer x.unlock()
	if number <= mark {
		x.moved++
		x.spool.removeLocked(e.ID, e.Spot)
		return nil
	}
	x.readSpooledLocked(e, number)
	return nil
}

// readSpooledLocked takes a task up that the spool has, and the ledger has not.
func (s *engine) readSpooledLocked(e recovery.Entry, number int64) {
	e.Shard = spoolShard
	f, readable := s.readableLocked(&e)
	if !readable {
		s.spool.lineLocked(s.lineOf(e.ID)).blocked = true
		return
	}
	if _, conflicting := s.store.Find(e.ID); conflicting {
		return // a scan that was begun anew
	}
	n, sl := s.store.Enter(e.ID, e.Data)
	s.spool.numbers[n] = number
	s.restoreLocked(n, sl, e, &f, s.now())
	s.enterSpoolLocked(n, sl)
}

func sortLine(l *spoolLine) {
	slices.SortFunc(l.items, func(a, b spooled) int { return cmp.Compare(a.number, b.number) })
}
