package respapi

// subscriptions are what a connection has subscribed to.
type subscriptions struct{}

func (s *subscriptions) any() bool { return false }

func (c *conn) unsubscribeAll() {}
