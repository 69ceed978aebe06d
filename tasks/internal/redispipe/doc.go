// Package redispipe sends the deliveries of one batch to Redis: as pipelines that are
// never so long that a slow network could not carry one within its timeouts, and with
// an outcome for each command by itself. Nothing is sent twice: that is the
// scheduler's affair, which counts attempts.
package redispipe
