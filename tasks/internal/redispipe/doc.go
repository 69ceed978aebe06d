// Package redispipe sends the deliveries of one batch to Redis: as pipelines short enough for a
// slow network to carry one within its timeouts, and with an outcome for each command. It sends
// nothing twice: the scheduler repeats attempts, and counts them.
package redispipe
