// Package broker has what the adapters of message brokers share: the connection that all
// deliveries of a way use, and what a message says of its task.
package broker
