// Package browser tests the pages of the server in a real browser: every view of the dashboard and
// every action in it, by the keyboard and on a phone too, the questions of an engineer who is woken
// at night, that axe-core finds nothing wrong, that the content security policy lets the pages
// work, and that a page of another site cannot use the API.
//
// Most servers have their ledger on the disk, as that of make run is; some are a fleet, in memory
// or on a Redis.
//
// Its tests have the build tag "browser"; `make browser` runs them, and `make night` two of them
// with many tasks.
package browser
