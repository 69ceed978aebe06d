package respapi

// classes are classes of events, as notify-keyspace-events has them.
type classes uint32

const (
	classGeneric classes = 1 << iota
	classString
)

// notify tells the subscribers of all nodes that something has happened to a key.
func (s *Server) notify(class classes, event string, key []byte) {}
