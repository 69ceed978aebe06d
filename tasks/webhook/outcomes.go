package webhook

// An outcome is the result of an attempt.
type outcome int

// The outcomes, in the order of an attempt.
const (
	unsigned       outcome = iota // not sent: the secret that the topic names is missing
	refusedTarget                 // not sent: the task's own delivery does not hold (any more)
	dns                           // the host's name could not be resolved
	refusedAddress                // the address that the name resolves to is not allowed
	dial                          // no connection
	tlsFailed                     // a connection, but no TLS
	timeout                       // sent, and no answer in time
	broken                        // the connection broke, or the answer is not HTTP
	stopped                       // given up, because this process stops
	ok                            // 2xx
	redirect                      // 3xx
	refused                       // 4xx, except the next two
	gone                          // 410
	throttled                     // 429 and 503
	failed                        // 5xx, except 503
	odd                           // any other status
)

var outcomeNames = []string{
	unsigned: "unsigned", refusedTarget: "refused_target", dns: "dns", refusedAddress: "refused_address", dial: "dial", tlsFailed: "tls",
	timeout: "timeout", broken: "broken", stopped: "stopped",
	ok: "2xx", redirect: "3xx", refused: "4xx", gone: "gone", throttled: "throttled", failed: "5xx", odd: "odd_status",
}
