package campaign

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// TestModels: histories that have an order, and such that have none.
func TestModels(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(q request, from, to int) request {
		q.start, q.end = zero.Add(time.Duration(from)*time.Millisecond), zero.Add(time.Duration(to)*time.Millisecond)
		return q
	}
	const due, later = 5000, 9000
	post := request{verb: "post", due: due, status: 201}
	found := request{verb: "post", due: due, status: 200, n: due}
	get := request{verb: "get", status: 200, n: due}
	gone := request{verb: "get", status: 404}
	move := request{verb: "move", status: 200, due: later}
	moved := request{verb: "get", status: 200, n: later}
	cancel := request{verb: "cancel", status: 204}
	ack := request{verb: "ack"}
	unsure := func(q request) request { q.unknown = true; return q }
	open := func(q request) request { q.open = true; return q }
	set := func(value string) request { return request{verb: "set", value: value} }
	read := func(value string) request { return request{verb: "get", got: value} }
	number := func(verb string, n int64) request { return request{verb: verb, n: n, value: "nx", ttl: time.Hour} }
	short := request{verb: "set", value: "s", ttl: time.Second}
	for _, test := range []struct {
		name string
		step func(o object, q request) (bool, object)
		does []request
		want porcupine.CheckResult
	}{
		{"created, read, moved, cancelled", stepOfTask, []request{at(post, 0, 1), at(get, 2, 3), at(move, 4, 5), at(moved, 6, 7), at(cancel, 8, 9), at(gone, 10, 11)}, porcupine.Ok},
		{"read before a move that was answered", stepOfTask, []request{at(post, 0, 1), at(move, 4, 5), at(get, 6, 7)}, porcupine.Illegal},
		{"read while it is moved", stepOfTask, []request{at(post, 0, 1), at(move, 4, 9), at(get, 6, 7), at(moved, 10, 11)}, porcupine.Ok},
		{"moved, and back while it is moved", stepOfTask, []request{at(post, 0, 1), at(move, 2, 9), at(moved, 3, 4), at(get, 5, 6)}, porcupine.Illegal},
		{"created twice", stepOfTask, []request{at(post, 0, 1), at(post, 2, 3)}, porcupine.Illegal},
		{"created twice, and cancelled between", stepOfTask, []request{at(post, 0, 1), at(cancel, 2, 3), at(post, 4, 5)}, porcupine.Ok},
		{"cancelled twice", stepOfTask, []request{at(post, 0, 1), at(cancel, 2, 3), at(cancel, 4, 5)}, porcupine.Ok},
		{"cancelled after its acknowledgement", stepOfTask, []request{at(post, 0, 1), at(ack, 2, 3), at(cancel, 4, 5)}, porcupine.Illegal},
		{"there after its acknowledgement", stepOfTask, []request{at(post, 0, 1), at(ack, 2, 3), at(get, 4, 5)}, porcupine.Illegal},
		{"there after an acknowledgement that is not recorded", stepOfTask, []request{at(post, 0, 1), at(open(ack), 2, 3), at(gone, 4, 5), at(get, 6, 7)}, porcupine.Ok},
		{"a move without an answer, seen late", stepOfTask, []request{at(post, 0, 1), at(unsure(move), 2, 3), at(get, 4, 5), at(moved, 6, 7)}, porcupine.Ok},
		{"a move without an answer, taken back", stepOfTask, []request{at(post, 0, 1), at(unsure(move), 2, 3), at(moved, 4, 5), at(get, 6, 7)}, porcupine.Illegal},
		{"a creation without an answer, deleted again", stepOfTask, []request{at(unsure(post), 0, 1), at(get, 2, 3), at(gone, 4, 5)}, porcupine.Ok},
		{"a creation without an answer, confirmed, and gone", stepOfTask, []request{at(unsure(post), 0, 1), at(found, 2, 3), at(gone, 4, 5)}, porcupine.Illegal},
		{"a cancellation without an answer, that comes back", stepOfTask, []request{at(post, 0, 1), at(unsure(cancel), 2, 3), at(gone, 4, 5), at(get, 6, 7)}, porcupine.Ok},
		{"gone for no reason", stepOfTask, []request{at(post, 0, 1), at(gone, 2, 3)}, porcupine.Illegal},

		{"set and read", stepOfKey, []request{at(set("a"), 0, 1), at(read("a"), 2, 3), at(set("b"), 4, 5), at(read("b"), 6, 7)}, porcupine.Ok},
		{"the value before", stepOfKey, []request{at(set("a"), 0, 1), at(set("b"), 4, 5), at(read("a"), 6, 7)}, porcupine.Illegal},
		{"taken twice", stepOfKey, []request{at(set("a"), 0, 1), at(request{verb: "getdel", got: "a"}, 2, 6), at(request{verb: "getdel", got: "a"}, 3, 7)}, porcupine.Illegal},
		{"deleted twice", stepOfKey, []request{at(set("a"), 0, 1), at(number("del", 1), 2, 3), at(number("del", 0), 4, 5)}, porcupine.Ok},
		{"two locks", stepOfKey, []request{at(number("setnx", 1), 0, 5), at(number("setnx", 1), 1, 6)}, porcupine.Illegal},
		{"one lock", stepOfKey, []request{at(number("setnx", 1), 0, 5), at(number("setnx", 0), 1, 6)}, porcupine.Ok},
		{"a TTL that is taken away", stepOfKey, []request{at(short, 0, 1), at(number("pttl", 998), 2, 3), at(number("persist", 1), 4, 5), at(number("pttl", -1), 6, 7), at(number("persist", 0), 8, 9)}, porcupine.Ok},
		{"the TTL before", stepOfKey, []request{at(short, 0, 1), at(number("pexpire", 1), 2, 3), at(number("pttl", 990), 4, 5)}, porcupine.Illegal},
		{"a deletion without an answer", stepOfKey, []request{at(set("a"), 0, 1), at(unsure(number("del", 0)), 2, 3), at(read("a"), 4, 5), at(read(""), 6, 7)}, porcupine.Ok},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newObjects(test.step)
			for _, q := range test.does {
				s.add("it", q)
			}
			if got := porcupine.CheckOperationsTimeout(s.model, s.all["it"], time.Minute); got != test.want {
				t.Errorf("want %v, got %v", test.want, got)
			}
		})
	}
}
