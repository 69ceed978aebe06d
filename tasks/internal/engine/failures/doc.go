// Package failures logs that attempts fail and tasks die, without a line for each.
//
// A Log counts them by topic, and says once a minute what has come. It has a mutex of its own, and
// calls nothing under it. Nothing in it can fail.
package failures
