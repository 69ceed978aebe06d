// Package store keeps the tasks of a node in memory.
//
// It owns a slot of 48 bytes for each task, the arena with the IDs and the stored bytes, the
// index by ID, the lists of groups, and what became of the tasks that finished last. It has no
// lock, no clock and no goroutine: its caller holds the lock. It calls package record to read
// stored bytes, and knows the wheel and package task only for their types.
//
// Nothing can fail but memory itself: a record that is damaged in memory ends the process.
package store
