// Package lifetime is how far a process has come with its tasks, and what runs in it.
//
//	Begin ──> Opened is closed ──> End: Closing is closed ──> Finish: Done is closed
//
// Handlers end first, within the grace of Close. Then the context is cancelled, which ends what
// runs in the background. Once End has been called, Enter, Handle and Go add nothing to either
// group: so a group that is waited for does not grow.
//
// Nothing in it can fail.
package lifetime
