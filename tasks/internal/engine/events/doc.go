// Package events passes on what happens to the tasks of a node.
//
// A Feed has the subscriptions to the events of one node. The engine offers it every event, with
// its own mutex held, so that all subscriptions get the events in one order. A Subscription keeps
// those that it is to for its reader, as many as its buffer has room for. The feed and each of its
// subscriptions have a mutex, which they hold for a few instructions: a reader never keeps a
// delivery waiting.
//
// What can fail: a reader is too slow, and events are lost, which are counted.
package events
