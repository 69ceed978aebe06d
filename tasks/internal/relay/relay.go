package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-multierror"
)

// Errors of Call. They come wrapped with details; test for them with errors.Is. Each
// error is exactly one of the first three, and ErrClosed comes together with one of them.
var (
	// ErrUnheard is returned when the call was not executed and never will be, because no
	// node received it.
	ErrUnheard = errors.New("no node received the call")
	// ErrOverloaded is returned when the call was not executed and never will be,
	// because the other node, or this one, has too many under way.
	ErrOverloaded = errors.New("too many calls are under way")
	// ErrNoAnswer is returned when it is unknown whether the call was executed.
	ErrNoAnswer = errors.New("the call was not answered, and may have been executed")
	// ErrNotTaken is returned when the bus takes no message, see CallPromptly. It comes together
	// with ErrUnheard or ErrNoAnswer.
	ErrNotTaken = errors.New("the bus takes no message")
	// ErrClosed is returned when the relay was closed before there was an answer.
	ErrClosed = errors.New("the relay is closed")
)

// MaxBody is the longest body of a call or an answer, in bytes.
const MaxBody = 32 << 20

// MaxTime is the longest time to live of a call, whatever its caller's context says.
const MaxTime = 2 * time.Minute

// A Bus carries messages between nodes, in no order. A message may be lost.
type Bus interface {
	// Listen begins to receive messages to this node or to all; it is called once. Calls of
	// receive come one at a time; receive may keep the message.
	Listen(receive func(message []byte)) error
	// StopListening ends listening, once what was sent before is received, or when ctx ends.
	// A message that is sent later is unheard, where the bus can tell. It may be called without
	// Listen, and again.
	StopListening(ctx context.Context)
	// Send sends a message to a node, or to all others if node is empty. It does not keep the
	// message. An error means that the message may not have been sent. An error with a method
	// Unheard() bool that returns true means that no node received it, or ever will.
	Send(ctx context.Context, node string, message []byte) error
}

// A Call comes from another node.
type Call struct {
	From   string // the node that calls
	Method string
	Body   []byte
	Told   bool // the sender wants no answer, see Send
}

// A Config says how a relay answers, and its bounds. Bus, Node, Incarnation and Answer
// must be set.
type Config struct {
	Bus Bus
	// Node is this node's name, and Incarnation names its process among all that had
	// it. Both are at most 255 bytes.
	Node, Incarnation string

	// Answer answers a call of another node. It encodes errors in its answer, and handles
	// unknown methods. Each call has a goroutine of its own. ctx ends with the call's time to
	// live, when the call is withdrawn, and with Close; the answer is sent even then. The
	// answer must not change afterwards.
	Answer func(ctx context.Context, q Call) []byte
	// Late gets an answer that came after Call had returned ErrNoAnswer, at most once for each
	// call, from a goroutine of its own; called is when Call was called. Nil drops it.
	Late func(node, method string, answer []byte, called time.Time)
	// InOrder reports whether notifications of a method are answered one at a time for each process
	// that sends them, in the order in which they come. They are no part of MaxAnswering. Nil:
	// each has a goroutine of its own. It is called with the relay's mutex held.
	InOrder func(method string) bool
	// Silence is how long Call waits without a message of the other side about its call;
	// MaxTime unless set, and at least 100 ms.
	Silence time.Duration
	// Patience is how long a prompt call waits for the bus to take a copy of it; 100 ms unless set.
	Patience time.Duration
	// Log gets what is wrong with messages. Nil means slog.Default().
	Log *slog.Logger

	Limits
}

// Limits bound what a relay keeps. Zero stands for the default.
type Limits struct {
	// MaxCalls is how many calls may wait for their answer; 65,536.
	MaxCalls int
	// MaxAnswering is how many calls are being answered at once; 4,096.
	MaxAnswering int
	// MaxRemembered is how many calls are remembered, to recognise their repeats, until
	// their time to live is over; 262,144. Calls beyond it are not executed.
	MaxRemembered int
	// MaxBytes bounds each of four: the calls being answered, the answers remembered, what waits
	// to be sent, and the notifications that wait for their turn; 128 MiB, at least MaxBody.
	MaxBytes int
}

func (c Config) withDefaults() (Config, error) {
	for _, d := range []struct {
		field *int
		value int
	}{{&c.MaxCalls, 1 << 16}, {&c.MaxAnswering, 1 << 12}, {&c.MaxRemembered, 1 << 18}, {&c.MaxBytes, 128 << 20}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Silence == 0 {
		c.Silence = MaxTime
	}
	c.Silence = max(c.Silence, firstPause)
	if c.Patience <= 0 {
		c.Patience = firstPause
	}
	var faults *multierror.Error
	fault := func(wrong bool, what string) {
		if wrong {
			faults = multierror.Append(faults, errors.New(what))
		}
	}
	fault(c.Bus == nil || c.Answer == nil, "a relay needs a bus and a way to answer")
	fault(c.Node == "" || len(c.Node) > maxText, "the node's name must be 1 to 255 bytes")
	fault(c.Incarnation == "" || len(c.Incarnation) > maxText, "the incarnation must be 1 to 255 bytes")
	fault(min(c.MaxCalls, c.MaxAnswering, c.MaxRemembered) < 1, "the limits must be positive")
	fault(c.MaxBytes < MaxBody, fmt.Sprintf("the limit of bytes must be at least %d", MaxBody))
	return c, faults.ErrorOrNil()
}

// Stats are totals since the start, and what is under way.
type Stats struct {
	// Of this node's calls: Asked were sent. They ended with an answer, with ErrNoAnswer
	// (Unanswered), with ErrUnheard (Unheard), or refused with ErrOverloaded (Overloaded).
	// Resent are copies beyond the first; LateAnswers came when no caller waited any more.
	Asked       int64 `metric:"relay_asked_total" help:"Calls that this node has made to other nodes since its start, about their tasks or about shards."`
	Unanswered  int64 `metric:"relay_asked_failed_total,outcome=unanswered" help:"Calls of this node to other nodes without an answer, since its start, by outcome: unheard (no node heard it), unanswered (not in time), overloaded (not sent, since too many were under way). Callers may have got 503."`
	Unheard     int64 `metric:"relay_asked_failed_total,outcome=unheard"`
	Overloaded  int64 `metric:"relay_asked_failed_total,outcome=overloaded"`
	Resent      int64 `metric:"relay_resent_total" help:"Messages to other nodes that this node has sent again since its start, because no answer came."`
	LateAnswers int64

	// Of other nodes' calls: Answered were executed, notifications too; Refused were not, for
	// want of room; Expired came after their time to live. Repeats are copies that were
	// recognised.
	Answered         int64 `metric:"relay_answered_total" help:"Calls of other nodes that this node has answered since its start."`
	Refused          int64 `metric:"relay_refused_total" help:"Calls of other nodes that this node had no room to answer, since its start."`
	Expired, Repeats int64

	// Garbage are messages and frames that cannot be read; Failed are messages that the
	// bus did not take; Dropped are frames that were not sent for want of room.
	Garbage, Failed, Dropped int64

	// Asking are calls that wait for their answer, Answering those being answered.
	Asking          int `metric:"relay_asking" help:"Calls of this node to other nodes that wait for their answer, now."`
	Answering       int `metric:"relay_answering" help:"Calls of other nodes that this node is answering, now."`
	Remembered      int // calls whose repeats would be recognised
	RememberedBytes int // answers to them
	Queued          int // bytes that wait to be sent
}

// A Relay calls other nodes and answers them. All methods may be called concurrently.
type Relay struct {
	cfg     Config
	log     *slog.Logger
	start   time.Time
	life    context.Context // ends when Close begins
	end     context.CancelCauseFunc
	sending context.Context // ends when Close waits no longer for the bus
	stop    context.CancelFunc
	work    sync.WaitGroup // goroutines of this relay
	fetches chan struct{}  // holds a token for each piece in flight to this node
	swept   chan struct{}  // closed when sweep has returned
	closing sync.Once

	mu        sync.Mutex // guards everything below
	closed    bool       // Close has begun
	stuck     bool       // the bus is known to take nothing, see CallPromptly
	deaf      bool       // the bus has stopped to listen: what still comes is ignored
	stats     Stats
	counter   uint64 // of calls
	open      map[uint64]*openCall
	abandoned map[uint64]abandoned // by the calls' ids
	peers     map[process]*peer
	due       map[int64][]*remembered // calls to forget, by second of the clock
	answers   []*remembered           // those that may have an answer, the oldest first
	working   int                     // bytes of calls being answered
	inTurn    int                     // bytes of notifications that wait for their turn
	lanes     map[string]*lane        // by node; "" is for all other nodes
	fetching  map[source]*fetching
}

// New makes a relay and begins to listen. The error is that of the configuration, with
// all its faults, or of Bus.Listen.
func New(cfg Config) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancelCause(context.Background())
	sending, stop := context.WithCancel(context.Background())
	r := &Relay{
		cfg: cfg, log: cfg.Log, start: time.Now(),
		life: life, end: end, sending: sending, stop: stop,
		fetches:   make(chan struct{}, maxFetches),
		swept:     make(chan struct{}),
		open:      map[uint64]*openCall{},
		abandoned: map[uint64]abandoned{},
		peers:     map[process]*peer{},
		due:       map[int64][]*remembered{},
		lanes:     map[string]*lane{},
		fetching:  map[source]*fetching{},
	}
	go r.sweep()
	if err := cfg.Bus.Listen(r.receive); err != nil {
		r.Close()
		return nil, fmt.Errorf("relay: %w", err)
	}
	return r, nil
}

// Close stops listening, ends every Call, lets the calls being executed end, and returns when their
// answers are sent, or cannot be. A call that the bus has taken before is answered, unless its
// answer has to be fetched. A later one is unheard, where the bus can tell: its caller knows that
// it was not executed. Close is idempotent. The bus must still work, and may be closed afterwards.
func (r *Relay) Close() {
	r.closing.Do(func() {
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		r.end(ErrClosed)
		patience := time.AfterFunc(sendTimeout, r.stop)
		r.cfg.Bus.StopListening(r.sending)
		r.mu.Lock()
		r.deaf = true
		r.mu.Unlock()
		r.work.Wait()
		<-r.swept
		patience.Stop()
		r.stop()
	})
}

// Stats returns the totals.
func (r *Relay) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Asking = len(r.open)
	return s
}

// clock is the time in messages: milliseconds since the relay began, from 1.
func (r *Relay) clock() uint64 { return uint64(time.Since(r.start).Milliseconds()) + 1 }

// receive handles one message of the bus. It must be quick: a bus closes slow readers' connections.
func (r *Relay) receive(message []byte) {
	m := reader{b: message}
	h, err := m.header()
	if err != nil {
		r.garbage(h, err)
		return
	}
	if h.process == (process{r.cfg.Node, r.cfg.Incarnation}) {
		return // sent to all, and so to itself
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deaf {
		return
	}
	p := r.peerLocked(h)
	for {
		k, rest, more, err := m.frame()
		if err == nil && more {
			err = r.frameLocked(p, k, &rest, len(message))
		}
		if err != nil {
			r.garbageLocked(h, err)
		}
		if !more {
			return
		}
	}
}

// frameLocked handles one frame. size is the size of the whole message.
func (r *Relay) frameLocked(p *peer, k kind, rest *reader, size int) error {
	switch k {
	case callFrame:
		if q := rest.call(); !rest.bad {
			r.callLocked(p, &q)
		}
	case answerFrame:
		if a := rest.reply(); !rest.bad {
			a.body = own(a.body, size)
			r.replyLocked(p, a)
		}
	case notificationFrame:
		if method := rest.text(); !rest.bad {
			r.notificationLocked(p, method, rest.b, size)
		}
	case withdrawalFrame:
		if id := rest.number(); !rest.bad {
			p.withdrawn(id)
		}
	case fetchFrame:
		if key, position := rest.bodyKey(); !rest.bad {
			r.fetchLocked(p, key, position)
		}
	case pieceFrame:
		if key, position := rest.bodyKey(); !rest.bad {
			r.pieceLocked(p, key, position, rest.b)
		}
	}
	if rest.bad {
		return errGarbage
	}
	return nil
}

// own copies a small body, so that it does not keep a large message in memory.
func own(body []byte, message int) []byte {
	if body == nil || 2*len(body) > message {
		return body
	}
	return append(make([]byte, 0, len(body)), body...)
}

func (r *Relay) garbage(h header, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.garbageLocked(h, err)
}

func (r *Relay) garbageLocked(h header, err error) {
	r.stats.Garbage++
	if r.stats.Garbage == 1 {
		r.log.Warn("a message on the bus cannot be read, and is ignored; further ones are only counted", "from", h.node, "error", err)
	}
}
