// Package mend sets aside keys that another program has damaged, so that they do not keep a process
// from starting.
//
// It owns the type that each key must have, and the id of the data set. It calls packages conn and
// layout only, and enters what it has found in the log and in readiness.
//
// # What can fail
//
// [Mender.Mend] returns the errors of Redis, and fails when a key is damaged and the user of
// Redis may not rename it. [Mender.Dataset] returns recovery.ErrLayout for a data set of a newer
// version.
package mend
