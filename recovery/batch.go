package recovery

// A Batch is a sequence of changes with distinct ids that are written together.
// It keeps copies of what it is given in one buffer of its own, so that the
// caller's memory may move meanwhile and a change costs no allocation once the
// batch has been used before.
type Batch struct {
	items []item
	buf   []byte
	gone  int // bytes in buf that belong to no item any more
	spool string
}

// An item is a Change whose bytes lie in the batch's buffer: the id from id
// to data, the record from data to end.
type item struct {
	from, to      Spot
	id, data, end int
	none          bool  // Data was nil
	number        int64 // of the mark
}

// Add appends a copy of c.
func (b *Batch) Add(c Change) {
	it := item{from: c.From, to: c.To, id: len(b.buf), none: c.Data == nil, number: c.Mark.Number}
	if it.number != 0 {
		b.spool = c.Mark.Spool
	}
	b.buf = append(b.buf, c.ID...)
	it.data = len(b.buf)
	b.buf = append(b.buf, c.Data...)
	it.end = len(b.buf)
	b.items = append(b.items, it)
}

// Len is the number of changes.
func (b *Batch) Len() int { return len(b.items) }

// Bytes is the size of all ids and records together.
func (b *Batch) Bytes() int { return len(b.buf) - b.gone }

// At returns the i-th change. Its slices are valid until the next Add or Reset.
func (b *Batch) At(i int) Change {
	it := &b.items[i]
	c := Change{ID: b.buf[it.id:it.data:it.data], From: it.from, To: it.to}
	if it.number != 0 {
		c.Mark = Mark{b.spool, it.number}
	}
	if !it.none {
		c.Data = b.buf[it.data:it.end:it.end]
	}
	return c
}

// Mark is the highest mark of the batch's changes. The Committer puts changes with a mark
// into batches of their own, all of one spool.
func (b *Batch) Mark() (m Mark) {
	for i := range b.items {
		if n := b.items[i].number; n > m.Number {
			m = Mark{b.spool, n}
		}
	}
	return m
}

// marked reports whether a change with or without a mark may join the others.
func (b *Batch) marked(with bool) bool { return len(b.items) == 0 || (b.items[0].number != 0) == with }

// Retain drops the changes for which keep returns false. It calls keep once for each change,
// in order; the others keep their order.
func (b *Batch) Retain(keep func(i int) bool) {
	kept := b.items[:0]
	for i, it := range b.items {
		if keep(i) {
			kept = append(kept, it)
		} else {
			b.gone += it.end - it.id
		}
	}
	b.items = kept
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() { b.items, b.buf, b.gone, b.spool = b.items[:0], b.buf[:0], 0, "" }
