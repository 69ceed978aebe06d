// Package examples runs what the folder examples has. It has tests only.
//
// The README.md of an example has one command, and what it prints. TestExamples (build tag clients,
// `make clients`) runs the command in the example's folder beside a server of its own, `lapse dev`,
// and wants what is printed there. LAPSE_URL and REDIS_URL say where the server is. TestUnchanged
// runs the example for clients of Redis against a Redis.
//
// scripts/need-redis-clients installs what the examples need. An example whose language or library
// is not there is named and passed over.
package examples
