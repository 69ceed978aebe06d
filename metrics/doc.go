// Package metrics exports the figures of a scheduler to Prometheus.
//
// A Collector reads tasks.Scheduler.Stats when it is scraped and at no other time, so metrics cost
// a task nothing. The figures are those of one node: Prometheus asks each, and adds up. Counters
// start at zero with the process. Gauges show the moment of the scrape.
//
// A metric that shows one figure as it is has its name and text in the tags of the figure's field,
// see tasks.Figures. All others stand in names.go, among them those of the doors.
//
// It owns the choice of the topics that have series of their own. It calls package tasks only, and
// knows neither HTTP routes nor ledgers.
//
// Nothing here fails: a closed scheduler shows its last figures, and the count of nodes is left out
// while the ledger cannot tell them.
package metrics
