// Package record has the stored form of a task: the bytes that ledgers keep and that memory holds.
//
// It owns the layout and its versions. It calls no other package of Lapse. A record can be of a
// newer version (ErrNewer) or damaged (ErrBad).
package record
