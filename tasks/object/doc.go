// Package object reads the delivery object of a topic for a way of delivery: strictly, field by
// field, and with all faults at once. An unknown field is a fault, and no fault repeats a value.
//
// It owns nothing but the [Object] that is being read, and calls package task only. What can fail
// is the object: [Object.Err] is a task.InvalidError with all faults.
package object
