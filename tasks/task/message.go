package task

import "context"

// MaxMessage bounds the body of a message between nodes, and of its answer: 1 MiB.
const MaxMessage = 1 << 20

// A MessageHandler takes a message that the program of another node has sent. from names that node.
// What it returns is the answer, if the sender waits for one. ctx ends when the sender waits no
// longer, and when the scheduler closes. It must not change body, and may keep it.
//
// Messages that wait for an answer are handled at once, up to 512 at a time; more are refused with
// ErrOverloaded. Broadcasts of one node are handled one after another, in the order in which they
// come: while a handler is at work on one, the next ones of that node wait, and beyond 16 MiB they
// are lost.
type MessageHandler func(ctx context.Context, from string, body []byte) ([]byte, error)
