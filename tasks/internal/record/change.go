package record

// Hold holds the countdown of a task that waits for its next attempt, from now on.
func (f *Fields) Hold(now int64) {
	f.Flags |= Held
	f.HeldAt, f.HeldNext, f.Next = now, f.Next, HeldUntil
}

// Resume lets a held countdown go on: the next attempt and the deadline are as far from now as they
// were from the moment of the hold.
func (f *Fields) Resume(now int64) {
	next := max(now+f.HeldNext-f.HeldAt, 0)
	f.Due, f.Next = max(f.Due+next-f.HeldNext, 0), next
	f.Release()
}

// Release takes the hold off a record. Due and Next stay.
func (f *Fields) Release() {
	f.Flags &^= Held
	f.HeldAt, f.HeldNext = 0, 0
}

// Succeed makes f the record of a task that takes the place of another one, whose version comes
// next. Who made the id does not change.
func (f *Fields) Succeed(old *Fields) {
	f.Created, f.Revision, f.Stamp = old.Created, old.Revision, old.Stamp
	f.Flags = f.Flags&Held | old.Flags&ChosenID
}
