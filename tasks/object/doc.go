// Package object reads the delivery object of a topic for a way of delivery: strictly, field by
// field, and with all faults at once. An unknown field is a fault, and no fault repeats a value.
package object
