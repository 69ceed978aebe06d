// Package coalesce keeps, of the misfired tasks of groups, those that this node has chosen.
//
// A Candidate is a misfired task of a group. Of its own the node chooses the latest one. Where
// other nodes may have tasks of the group, that is a Choice: it is held back while they are asked.
// Once it is let go, the Board remembers it for a while, so that other nodes learn what has become
// of it. A Standing is what a node can say about the candidates of a group that are later than a
// given one.
//
//	latest of this node ──> Hold ──> Next ──> others are asked ──> Requeue
//	                                                          ├──> End: it is skipped
//	                                                          └──> End, Remember: it is let go
//
// The package is passive. It has no lock, no goroutine and no clock: its caller holds
// engine.Engine's mutex. Nothing in it can fail. See docs/internals/decisions/0013-coalesce.md.
package coalesce
