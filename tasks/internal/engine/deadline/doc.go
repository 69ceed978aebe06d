// Package deadline makes contexts with a deadline that cost little until they are waited for.
//
// A context of package context with a deadline has a timer, and a place among the children of its
// parent. Most calls and most deliveries end without waiting for their context. A Context gets both
// when Done is called first, and Wait needs a timer alone, which is used again.
//
// Nothing in it can fail.
package deadline
