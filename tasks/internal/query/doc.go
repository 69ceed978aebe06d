// Package query has what is asked about many tasks at once, and how the answers of several nodes
// become one: lists and what they select, acts, redrives and purges. Nodes send one another these
// values.
//
// It reads no tasks. The engine answers for one node, and the cluster asks all of them.
package query
