package docs

import "testing"

// exempt are the blocks that no test runs, by page and first line, with the reason. The list may
// only shrink: what a new page shows is run.
var exempt = map[string]string{
	"docs/comparison.md: make bench-compare                                                  # 5 rounds of everything, 20 to 40 minutes": long,

	"docs/operations.md: LAPSE_HANDOVER=true                          # on every node, in lapse.env": "it restarts three machines by ssh",

	"docs/delivery.md: nats stream add ORDERS --subjects 'orders.>' --defaults":                                                broker,
	"docs/delivery.md: nats consumer add ORDERS cancellers --pull --defaults":                                                  broker,
	"docs/delivery.md: rabbitmqadmin declare queue name=orders.expired durable=true 'arguments={\"x-queue-type\":\"quorum\"}'": broker,
	"docs/delivery.md: rabbitmqadmin get queue=orders.expired ackmode=ack_requeue_false count=10":                              broker,
	"docs/delivery.md: kafka-topics.sh --create --topic orders.expired --bootstrap-server 127.0.0.1:9092":                      broker,
	"docs/delivery.md: kcat -b 127.0.0.1:9092 -C -t orders.expired -f '%k %h %s\\n'":                                           broker,
}

const (
	long   = "it takes 20 minutes, and make bench-compare tries it"
	broker = "it needs a broker and its command line; make adapters tries the way of delivery with a real one"
)

// mostExempt is how many blocks are exempt. It may only be lowered.
const mostExempt = 8

func TestExempt(t *testing.T) {
	if len(exempt) > mostExempt {
		t.Errorf("%d blocks are not run, at most %d may be", len(exempt), mostExempt)
	}
	found := map[string]bool{}
	for _, page := range pages(t) {
		for _, b := range blocksOf(page, readPage(t, page)) {
			found[b.name()] = true
		}
	}
	for name, reason := range exempt {
		if !found[name] {
			t.Errorf("%s is gone: take it off the list", name)
		}
		if reason == "" {
			t.Errorf("%s: why is it not run?", name)
		}
	}
}
