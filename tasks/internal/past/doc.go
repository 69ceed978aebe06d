// Package past keeps what was counted, by the minute and by the hour, with the ledger.
//
// A [Past] looks once a minute at the figures of the topics, and keeps the differences: a row for
// all topics together, and one each for the Shown topics in which most has happened. The row of all
// says whether other topics were left out. A row is of one process of a node, and no other one adds
// to it: so the past of a node that has died or begun anew stays as it was. What the ledger does
// not take waits in memory, up to MaxWaiting bytes, and is then dropped and counted. Nothing waits
// for it.
//
// It keeps as well how tasks have ended, by topic and minute of their deadline: once a minute the
// rows that have changed, and once an hour all of them, up to 256 KiB at a time. A row has 256
// topics of a minute. A [Kept] has what processes have counted that do not live.
//
// A [Sum] adds up the rows of the ledger and what the nodes that live have in memory. Of a process
// and a time that both have, the memory counts.
//
// The package calls recovery and task, and knows neither the engine nor other nodes.
package past
