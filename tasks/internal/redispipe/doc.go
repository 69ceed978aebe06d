// Package redispipe sends the deliveries of one batch to Redis: as pipelines short enough for a
// slow network to carry one within its timeouts, and with an outcome for each command. It sends
// nothing twice: the scheduler repeats attempts, and counts them.
//
// It owns nothing, and calls go-redis and no package of Lapse. What can fail is each command: with
// what Redis replied, or with [ErrUnreachable] if Redis may or may not have executed it.
package redispipe
