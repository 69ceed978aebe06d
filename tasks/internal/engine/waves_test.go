package engine_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine/minutes"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// waveOf returns the counts of a minute.
func waveOf(r *rig.Rig, minute time.Time) (Wave, WaveCounts) {
	r.T.Helper()
	w, err := r.Admin().Waves(r.T.Context(), WaveQuery{From: minute, To: minute.Add(time.Minute)})
	rig.Want(r.T, "Waves", err, nil)
	return w, w.Total()
}

// What has ended beyond the rows of a node may be of any topic: a wave of one is not complete.
func TestWaveBeyondTheRows(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		minute := time.Now().Truncate(time.Minute)
		ended := r.Engine().TopicTable.History.Ended
		for i := range minutes.MaxRows {
			ended.Row(strconv.Itoa(i), minute.Unix()/60-1)
		}
		r.Must(Request{ID: "a", Topic: "x"})
		r.Ack(r.Pull("x", "a")[0])
		rig.Pass(0)
		w, c := waveOf(r, minute)
		if !w.Complete || c.Delivered != 1 || w.Others.Delivered != 1 {
			t.Errorf("all topics: %+v", w)
		}
		w, err := r.Admin().Waves(t.Context(), WaveQuery{From: minute, To: minute.Add(time.Minute), Topic: "x"})
		if rig.Want(t, "Waves", err, nil); w.Complete {
			t.Errorf("one topic: %+v", w)
		}
	})
}

// Every task of a wave has one fate, whatever is done to it.
func TestWave(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		minute := time.Now().Add(10 * time.Minute).Truncate(time.Minute)
		due := time.Until(minute)
		for _, id := range []string{"acked", "failed", "dead", "killed", "requeued", "deleted", "open", "waits"} {
			r.Must(Request{ID: id, Topic: "x", Delay: due})
		}
		for _, id := range []string{"held", "cancelled", "moved"} {
			r.Must(Request{ID: id, Topic: "y", Delay: due + time.Second})
		}
		r.Must(Request{ID: "skipped", Topic: "z", Delay: due, MaxLateness: time.Second})
		r.Must(Request{ID: "before", Topic: "x", Delay: due - time.Millisecond})
		r.Must(Request{ID: "after", Topic: "x", Delay: due + time.Minute})
		if _, c := waveOf(r, minute); c.Waiting != 12 || c.Open() != 12 || c.Ended() != 0 {
			t.Errorf("before: %+v", c)
		}
		_, err := r.Hold(t.Context(), "held")
		rig.Want(t, "Hold", err, nil)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		_, err = r.Reschedule(t.Context(), "moved", Move{Delay: rig.Ptr(due + time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		rig.Pass(due + 5*time.Second)
		r.Pull("z") // which skips it
		for _, d := range r.Pull("x", "before", "acked", "failed", "dead", "killed", "requeued", "deleted", "open", "waits") {
			switch d.ID {
			case "before", "acked":
				r.Ack(d)
			case "failed":
				r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)}, d)
			case "open":
			case "waits":
				r.SettleOne(Verdict{Verb: Return}, d)
			default:
				r.SettleOne(Verdict{Verb: Bury}, d)
			}
		}
		rig.Pass(0)
		want := WaveCounts{Waiting: 1, Delivering: 1, Retrying: 1, Held: 1, Delivered: 1, Dead: 4, Cancelled: 1, Skipped: 1}
		check := func(what string) {
			t.Helper()
			_, c := waveOf(r, minute)
			c.Oldest, c.LastEnd, c.Per1000s = time.Time{}, time.Time{}, 0
			if c != want {
				t.Errorf("%s: %+v, want %+v", what, c, want)
			}
		}
		check("at work")
		_, err = r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"requeued"}, Delay: time.Hour})
		rig.Want(t, "Requeue", err, nil)
		want.Dead--
		check("requeued")
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "deleted"), nil)
		want.Dead, want.Cancelled = want.Dead-1, want.Cancelled+1
		check("deleted")
		if w, _ := waveOf(r, minute.Add(-time.Minute)); w.Total().Delivered != 1 || w.Outlook(&w.Topics[0].WaveCounts).Through.IsZero() {
			t.Errorf("the minute before: %+v", w)
		}
	})
}

// A wave of a day has every task that was made, once.
func TestWaveIsWhole(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 3}})
		began, made := time.Now(), int64(0)
		for range 60 {
			for range random.IntN(4) {
				r.Must(Request{ID: "t" + strconv.FormatInt(made, 10), Topic: "x", Delay: time.Duration(random.IntN(7200)) * time.Second})
				made++
			}
			rig.Pass(time.Duration(random.IntN(120)) * time.Second)
			ds, err := r.Reserve(t.Context(), "x", 3, 0, 0)
			rig.Want(t, "Reserve", err, nil)
			for _, d := range ds {
				verb := []Verb{Ack, Release, Bury, Return}[random.IntN(4)]
				r.SettleOne(Verdict{Verb: verb}, d)
			}
			if id := "t" + strconv.Itoa(random.IntN(int(made)+1)); random.IntN(3) == 0 {
				_ = r.Cancel(t.Context(), id) // it may be gone, or delivered just now
			}
			rig.Pass(0)
			w, err := r.Admin().Waves(t.Context(), WaveQuery{From: began, To: began.Add(5 * time.Hour)})
			rig.Want(t, "Waves", err, nil)
			if c := w.Total(); c.Open()+c.Ended() != made {
				t.Fatalf("%d of %d tasks: %+v", c.Open()+c.Ended(), made, c)
			}
		}
	})
}

// What died before a restart, and is requeued after it, takes nothing from other topics, and is no
// end.
func TestWaveAfterARestart(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		minute := time.Now().Truncate(time.Minute)
		r.Bury("x", "dead")
		r.Restart()
		r.Must(Request{ID: "a", Topic: "y"})
		rig.Pass(time.Second)
		r.Ack(r.Pull("y", "a")[0])
		rig.Pass(time.Minute)
		before, _ := waveOf(r, minute)
		_, err := r.Admin().Requeue(t.Context(), "x", Requeue{Delay: time.Hour})
		rig.Want(t, "Requeue", err, nil)
		w, c := waveOf(r, minute)
		if c.Delivered != 1 || c.Dead != 0 || c.Ended() != 1 || len(w.Topics) != 1 {
			t.Errorf("%+v", w)
		}
		if was := before.Total(); !c.LastEnd.Equal(was.LastEnd) {
			t.Errorf("the last end was %v, and is %v", was.LastEnd, c.LastEnd)
		}
	})
}

// A task that is requeued has not ended then.
func TestWaveRequeuedIsNoEnd(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		minute := time.Now().Truncate(time.Minute)
		r.Bury("x", "a")
		r.Bury("x", "b")
		rig.Pass(0)
		_, before := waveOf(r, minute)
		rig.Pass(5 * time.Minute)
		_, err := r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"a"}, Delay: time.Hour})
		rig.Want(t, "Requeue", err, nil)
		if _, c := waveOf(r, minute); c.Dead != 1 || !c.LastEnd.Equal(before.LastEnd) {
			t.Errorf("%+v; the last end was %v", c, before.LastEnd)
		}
	})
}

// A task that ends while a wave is counted counts once: as what it was when the count came by, or
// as what has become of it.
func TestWaveOfTasksThatEnd(t *testing.T) {
	r := rig.New(t, Config{})
	minute := time.Now().Truncate(time.Minute)
	const number, batch = 20_000, 500
	requests := make([]Request, number)
	for i := range requests {
		requests[i] = Request{Topic: "x", Due: minute}
	}
	for some := range slices.Chunk(requests, MaxBatch) {
		_, err := r.ScheduleBatch(t.Context(), some)
		rig.Want(t, "ScheduleBatch", err, nil)
	}
	batches := make(chan int)
	go func() {
		defer close(batches)
		for i := range number / batch {
			ds, err := r.Reserve(t.Context(), "x", batch, 0, 0)
			if err != nil || len(ds) != batch {
				t.Errorf("reserved %d: %v", len(ds), err)
				return
			}
			receipts := make([]string, len(ds))
			for i := range ds {
				receipts[i] = ds[i].Receipt()
			}
			batches <- i
			if _, err = r.Settle(t.Context(), Verdict{Verb: []Verb{Ack, Bury}[i%2]}, receipts); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for i := range batches {
		if _, c := waveOf(r, minute); c.Open()+c.Ended() != number {
			t.Errorf("%d tasks are counted in batch %d: %+v", c.Open()+c.Ended(), i, c)
		}
	}
	if _, c := waveOf(r, minute); c.Delivered != number/2 || c.Dead != number/2 {
		t.Errorf("at the end: %+v", c)
	}
}
