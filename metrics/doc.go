// Package metrics exports the figures of a scheduler to Prometheus.
//
// A Collector reads tasks.Scheduler.Stats when it is scraped and at no other time, so metrics cost
// a task nothing. All names stand in names.go. Counters start at zero with the process. Gauges show
// the moment of the scrape.
//
// Nothing here fails: a closed scheduler shows its last figures.
package metrics
