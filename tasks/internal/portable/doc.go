// Package portable is the part of a node in exports, searches and imports: it reads the tasks of
// this node in an order that no change of a task changes, all of them or those that have a text in
// their ids or groups, and plans the creation of tasks as their records were elsewhere.
//
// It owns nothing. It calls the engine for what is in memory and which topics have dead tasks, and
// the ledger for the records of dead and finished ones. Package cluster puts the pages of all nodes
// together. docs/internals/decisions/0014-export.md says why no task is missing.
//
// What can fail: replay is not over (task.ErrReplaying), or the ledger cannot be read
// (task.ErrUnavailable).
package portable
