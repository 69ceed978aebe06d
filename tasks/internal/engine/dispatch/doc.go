// Package dispatch decides which topic's ready tasks may begin now, and who takes them.
//
// A Line is one topic's ready tasks, with the receivers that wait for them and the workers that
// deliver them. The Board has the places that all lines share: Config.MaxDeliveries for workers,
// Config.MaxInFlight for deliveries that only a receipt can settle. When places are scarce, the
// lines contend for them by weight.
//
// The package is passive. It has no lock, no goroutine and no timer, and it never waits: its caller
// holds engine.Engine's mutex. The clock of a rate is handed in. A method that decides something
// returns Actions, which the caller carries out: it starts a worker, wakes a line after a rest, or
// serves a receiver of another node.
//
//	ready, freed, settings ──> Board.Wake ──> Action{Places}: start a worker
//	                                     ├──> Action{Rest}: wake the line again then
//	                                     ├──> Action{Serve}: serve a receiver of another node
//	                                     └──> a receiver is woken: Turn.Ready is closed
//
// Nothing in it can fail. It knows tasks by a number only, and topics by that of their Line.
package dispatch
