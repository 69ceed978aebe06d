// Package rig is for tests of schedulers: those of package tasks, of the engine and of the cluster.
// A Rig is one node on a ledger in memory, a Fleet several nodes that share one; their tests have
// fake time (Bubble, FleetBubble). It also has ways of delivery for tests, and compares what an
// engine knows with itself and with its ledger.
//
// It owns the schedulers that it opens, which end with their test. It calls package tasks, and
// looks into the rooms behind it. What can fail is the test. No program may import it.
package rig
