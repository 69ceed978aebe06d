// Package browser tests the pages of the server in a real browser: every view of the dashboard and
// every action in it, by the keyboard and on a phone too, the questions of an engineer who is woken
// at night, that axe-core finds nothing wrong, that the content security policy lets the pages
// work, and that a page of another site cannot use the API.
//
// Most servers have their ledger on the disk, as that of make run is. With LAPSE_LEDGER=redis the
// same tests have it on a Redis, and with LAPSE_LEDGER=fleet they schedule at one of three servers
// that share a Redis, and look at the page of another.
//
// The questions of the night are asked at a fleet of processes of which a part is away.
//
// Its tests have the build tag "browser"; `make browser` runs them on each ledger, and `make night`
// three of them with many tasks.
package browser
