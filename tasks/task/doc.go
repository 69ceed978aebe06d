// Package task has the words of Lapse: a task, what asks for one, a delivery and what becomes of
// it, a topic and its settings, the configuration of a scheduler, and the errors.
//
// It owns the meaning of each word and checks that a value is in range: nothing here holds a task,
// reads a clock on its own or waits. It calls packages recovery and relay for the types of their
// figures, and nothing else of Lapse. What can fail is a value out of range: the error names the
// field and the accepted range.
//
// Applications use these words under their names in package tasks. The ways of delivery of this
// repository import this package only; those of other modules may import either.
package task
