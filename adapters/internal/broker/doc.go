// Package broker has what the adapters of message brokers share: the connection that all
// deliveries of a way use, and what a message says of its task.
//
// It owns the connection of a way: when it is made, and made again. It calls package tasks for the
// types of a delivery, and no library of a broker. What can fail: an attempt without a connection,
// with the error of the adapter's Connect, [ErrTimeout] or [ErrClosed].
package broker
