// Package metrics shows what a scheduler does to Prometheus.
//
// A Collector reads tasks.Scheduler.Stats when it is scraped and at no other
// time, so metrics cost a task nothing. All names stand in names.go. Counters
// start at zero with the process; gauges are what is so at the moment of the
// scrape.
//
// Nothing here fails: a scheduler that is closed shows its last figures.
package metrics
