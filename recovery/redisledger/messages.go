package redisledger

import "context"

// Listen implements recovery.Bus. It returns an error only if this ledger's Redis user may not
// subscribe, or if the ledger listens already. It waits for the end of an outage, then and later.
func (l *Ledger) Listen(receive func(message []byte)) error {
	done, err := l.use(context.Background())
	if err != nil {
		return err
	}
	defer done()
	return l.bus.Listen(receive)
}

// Send implements recovery.Bus. The error is recovery.ErrUnheard if no node can have received
// the message.
func (l *Ledger) Send(ctx context.Context, node string, message []byte) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return l.bus.Send(ctx, node, message)
}

// StopListening implements recovery.Bus.
func (l *Ledger) StopListening(ctx context.Context) {
	done, err := l.use(ctx)
	if err != nil {
		return // listening has ended with the ledger, or is about to
	}
	defer done()
	l.bus.StopListening(ctx)
}
