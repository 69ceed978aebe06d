package respapi

// subscriptions are what a connection has subscribed to.
type subscriptions struct{}

func (s *subscriptions) any() bool { return false }

func (s *subscriptions) counts() (channels, patterns int) { return 0, 0 }

func (c *conn) unsubscribeAll() {}
