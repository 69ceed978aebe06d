package tasks

import (
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/task"
)

// A delivery is an attempt that this node has begun, or that another node has begun and has
// sent here. The embedded part is what a deliverer or a receiver gets.
type delivery struct {
	Delivery
	slot    uint32
	shard   uint16
	shardID recovery.Home
	lease   lease
	signer  *receipt.Signer

	// Of a delivery that another node has begun:
	receipt string
	source  *source
}

// newDelivery completes d with what its receiver gets.
func newDelivery(d delivery, t Task, until time.Time) *delivery {
	d.Delivery = task.NewDelivery(t, until, &d)
	return &d
}

// Receipt implements Token.
func (d *delivery) Receipt() string {
	if d.receipt != "" {
		return d.receipt
	}
	return d.signer.Sign(&receipt.Receipt{
		ShardID: d.shardID, Attempt: d.lease.attempt, Revision: uint32(d.Revision),
		Created: d.Created.UnixMilli(), Nonce: d.lease.nonce, ID: d.ID,
	})
}

// A source says where a delivery comes from that another node has begun.
type source struct {
	node  string        // that holds the task
	lease time.Duration // as it was when the delivery left there
	work  any           // what brought it here for a worker; nil: it is for a receiver
	began time.Duration // for a worker: when it began with it
}
