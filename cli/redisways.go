package cli

import (
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/pubsub"
	"github.com/lapsehq/lapse/tasks/stream"
)

// deliveryConnections is how many batches may be sent to each server of Redis at once; more wait
// for one another.
const deliveryConnections = 64

// redisWays returns the ways of delivery that need a Redis, if there is one, and the function that
// closes their connections. No connection is made yet. A fault is noted in bad.
func (s *settings) redisWays(bad *faults) (ways []tasks.Way, closeRedis func()) {
	name, url := "delivery-redis", s.DeliveryRedis
	if url == "" {
		name, url = "redis", s.Redis
	}
	if url == "" {
		return nil, func() {}
	}
	client, err := redisledger.Connect(url, deliveryConnections)
	closeRedis = func() { _ = client.Close() }
	if err != nil {
		closeRedis = func() {}
		// Otherwise it is noted with the ledger's faults.
		if name != "redis" || redisledger.ParseURL(url) == nil {
			bad.add("%s: %w", name, err)
		}
	}
	// With a fault the ways exist all the same, so that topics that choose them are checked, too.
	return []tasks.Way{
		stream.New(client, stream.Config{Prefix: s.RedisPrefix}),
		pubsub.New(client, pubsub.Config{Prefix: s.RedisPrefix}),
	}, closeRedis
}
