package respapi

import "sync/atomic"

// counts are what the server has counted since it began.
type counts struct {
	accepted atomic.Int64 // connections
	refused  atomic.Int64 // connections beyond Config.MaxConnections
	commands atomic.Int64
	failed   atomic.Int64 // commands that were answered with an error
	badInput atomic.Int64 // connections that ended with a protocol error
	unsent   atomic.Int64 // events dropped, because too much waits to be sent to other nodes
	lost     atomic.Int64 // expired events of other ways of delivery, not published
	slow     atomic.Int64 // subscribers that were cut off because they did not read
}
