package delivertest

import (
	"context"
	"encoding/json"

	"github.com/lapsehq/lapse/tasks"
)

// A Rig is one way of delivery, with its receiver at the other end. Its methods are called by one
// goroutine. t.Cleanup of the test that it was made for cleans up.
type Rig interface {
	// Ways are for Config.Ways of every scheduler of the test; none for a way that
	// needs no package.
	Ways() []tasks.Way
	// Settings are those of a topic that delivers to the receiver: Kind and Delivery. The test sets
	// the rest.
	Settings() tasks.TopicSettings
	// Serve connects the receiver with a scheduler that delivers the tasks of a topic, which has
	// its settings already. It returns at once; ctx ends just before the scheduler closes. It is
	// called again for the next scheduler.
	Serve(ctx context.Context, s *tasks.Scheduler, topic string) error
	// Cannot says what this way or its receiver cannot do, and why.
	Cannot() map[Ability]string
}

// A Breaker is a Rig whose receiver does not decide the outcome of an attempt.
type Breaker interface {
	Rig
	// Break replaces the fault between the way and its receiver. It returns once every attempt that
	// begins from then on meets it.
	Break(f Fault)
}

// Stored is the part of a Breaker that is the same for every broker: the receiver needs no
// scheduler, since it reads what the broker has stored.
type Stored struct {
	Way      tasks.Way
	Delivery string             // of the topic, without its kind
	Lacks    map[Ability]string // see Rig.Cannot
}

// Ways implements Rig.
func (s Stored) Ways() []tasks.Way { return []tasks.Way{s.Way} }

// Settings implements Rig.
func (s Stored) Settings() tasks.TopicSettings {
	return tasks.TopicSettings{Kind: s.Way.Kind(), Delivery: json.RawMessage(s.Delivery)}
}

// Serve implements Rig.
func (s Stored) Serve(context.Context, *tasks.Scheduler, string) error { return nil }

// Cannot implements Rig.
func (s Stored) Cannot() map[Ability]string { return s.Lacks }

// A Fault is a fault between a way and its receiver.
type Fault string

// The faults that a Breaker has.
const (
	None   Fault = "none"
	Refuse Fault = "refuse" // each attempt fails at once: connections or commands are refused
	// Hang: nothing passes, without an error. What is held back goes on when the fault ends, or is
	// lost.
	Hang  Fault = "hang"
	Cut   Fault = "cut"   // connections end in the middle of an attempt, before it takes effect
	Lose  Fault = "lose"  // attempts take effect, and the connection ends instead of an answer
	Flaky Fault = "flaky" // about three of ten attempts fail, in any way
)

// An Ability is something that not every way of delivery, or its receiver, can do.
type Ability string

// What a case may need.
const (
	Kill Ability = "kill a task" // the receiver can make an attempt the last one
	// Pause: the receiver can say when the next attempt may come.
	Pause  Ability = "ask for a pause"
	Reason Ability = "say why" // a task's last error holds what the receiver said
	// Receipt: arrivals have a receipt, and [Later] leaves it open.
	Receipt Ability = "settle by receipt"
	// Bounded: the topic's concurrency bounds how many arrivals are under way.
	Bounded  Ability = "be kept from too much"
	Payloads Ability = "carry payloads"    // arrivals have the task's payload, byte for byte
	Headers  Ability = "carry headers"     // arrivals have the task's own headers
	Attempts Ability = "carry the attempt" // arrivals have the number of their attempt
)

// ofReceivers are the abilities of a receiver that answers.
var ofReceivers = map[Ability]bool{Kill: true, Pause: true, Reason: true, Receipt: true, Bounded: true}
