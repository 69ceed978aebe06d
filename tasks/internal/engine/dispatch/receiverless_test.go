package dispatch

import "testing"

// places returns what the actions start, as the number of places of each worker.
func places(actions []Action) (all []int) {
	for _, a := range actions {
		all = append(all, a.Places)
	}
	return all
}

// While a line lacks a receiver, a worker takes one task for each probe. A worker that has found no
// task leaves the probe to the next one.
func TestProbe(t *testing.T) {
	b := Board{MaxDeliveries: 100, MaxInFlight: 100, MaxConcurrency: 100}
	l := &Line{}
	l.Policy = Policy{Delivered: true, Batches: true, Concurrency: 20, Weight: 1}
	for range 50 {
		l.Queue.Push(Item{})
	}
	wants := func(what string, actions []Action, workers ...int) {
		t.Helper()
		if got := places(actions); len(got) != len(workers) || len(got) > 0 && got[0] != workers[0] {
			t.Fatalf("%s: workers with %v places are started, want %v", what, got, workers)
		}
	}
	allows := func(what string, by Consumer, want int) {
		t.Helper()
		if got := by.Allowed(l, 10); got != want {
			t.Fatalf("%s: %d deliveries may begin, want %d", what, got, want)
		}
	}
	wants("at first", b.Wake(l), 10, 10)
	allows("at first", ByWorker, 10)
	ByWorker.Spend(l, 10)
	b.Lack(l)
	allows("without a receiver", ByWorker, 0)
	allows("without a receiver", ByRemoteWorker("n"), 0)
	wants("without a receiver", append(b.EndWorker(l, 10), b.EndWorker(l, 10)...))
	if b.Neglected(l) || !l.Rests() {
		t.Error("the line is neglected, or does not rest")
	}
	wants("probe", b.Probe(l), 1)
	wants("probe again", b.Probe(l))
	allows("probe", ByWorker, 1)
	wants("a probe that has found nothing", b.EndWorker(l, 1), 1)
	ByWorker.Spend(l, 0)
	allows("probe", ByWorker, 1)
	ByWorker.Spend(l, 1)
	allows("after the probe", ByWorker, 0)
	wants("after the probe", b.EndWorker(l, 1))
	wants("with a receiver", b.Receive(l), 10, 10)
	allows("with a receiver", ByWorker, 10)
	allows("with a receiver", ByRemoteWorker("n"), 10)

	// While there is no task, a probe waits for one.
	b.Lack(l)
	for l.Queue.Live > 0 {
		l.Queue.Pop()
		l.Queue.Gone()
	}
	_, _ = b.EndWorker(l, 10), b.EndWorker(l, 10)
	wants("probe without a task", b.Probe(l))
	l.Queue.Push(Item{})
	wants("a task that the probe waits for", b.Wake(l), 1)
}
