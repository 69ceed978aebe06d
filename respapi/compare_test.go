package respapi_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// SET with IFEQ and IFNE, DELEX and DELIFEQ change a key whose value is, or is not, the given one.
func TestComparisons(t *testing.T) {
	w := newRig(t, Config{}, tasks.Config{}).dial()
	w.asks(`
		SET k a IFEQ b -> $-1
		EXISTS k -> :0
		SET k a IFNE b PX 100000 -> +OK
		SET k b IFEQ x -> $-1
		SET k b IFEQ x GET -> a
		SET k b IFEQ a KEEPTTL -> +OK
		TTL k -> :100
		SET k c ifne b GET -> b
		SET k c IFNE x GET -> b
		GET k -> c
		SET k d IFEQ -> -ERR syntax error
		SET k d IFEQ c NX -> -ERR syntax error
		SET k d XX IFEQ c -> -ERR syntax error
		SET k d IFEQ c IFNE d -> -ERR syntax error
		GETEX k IFEQ c -> -ERR syntax error
		DELIFEQ k x -> :0
		DELEX k IFEQ x -> :0
		DELEX k IFNE c -> :0
		DELEX k IFXX c -> -ERR syntax error
		DELEX k IFEQ -> -ERR syntax error
		DELIFEQ k -> -ERR wrong number of arguments for 'delifeq' command
		GET k -> c
		DELEX k IFEQ c -> :1
		DELEX k IFNE c -> :0
		DELIFEQ k c -> :0
		SET k e -> +OK
		DELIFEQ k e -> :1
		SET k f -> +OK
		DELEX k -> :1
		EXISTS k -> :0`)
	if got := w.exec("SET k 1", "SET k 2 IFEQ 2", "SET k 3 IFEQ 1", "DELIFEQ k 1", "DELEX k IFNE 1"); got != "*5 +OK $-1 +OK :0 :1" {
		t.Errorf("EXEC is answered %q", got)
	}
}

// Of many clients on three nodes one has a lock at a time, and none releases that of another one.
func TestLockByComparison(t *testing.T) {
	addrs := addrsOf(newFleetRigs(t, 3))
	var holders atomic.Int64
	crowd(t, addrs, 9, 40, func(w *wire, client, round int) {
		token := fmt.Sprintf("%d:%d", client, round)
		if w.command("SET", "lock", token, "NX", "PX", "100000"); w.answer() != "+OK" {
			w.ask(":0", "DELIFEQ", "lock", token)
			return
		}
		if n := holders.Add(1); n != 1 {
			t.Errorf("%d clients have the lock", n)
		}
		w.ask("+OK", "SET", "lock", token, "IFEQ", token, "PX", "200000")
		holders.Add(-1)
		w.ask(":1", "DELIFEQ", "lock", token)
	})
}

// A client that has selected a database that there is not is told so by each command about keys,
// also in a transaction, until it selects database 0.
func TestOtherDatabase(t *testing.T) {
	w := newRig(t, Config{}, tasks.Config{}).dial()
	const elsewhere = "-ERR there is database 0 alone, and this connection has selected another one; SELECT 0 goes on"
	w.asks("SET k 0 -> +OK\nSELECT 1 -> -ERR DB index is out of range\nPING -> +PONG")
	w.ask(elsewhere, "SET", "k", "1")
	w.ask(elsewhere, "GET", "k")
	w.ask(elsewhere, "XLEN", "expired:expired")
	w.ask(elsewhere, "WATCH", "k")
	w.asks("SELECT 0 -> +OK\nGET k -> 0")
	got := w.exec("SELECT 3", "SET k 2", "SELECT 0", "GET k")
	if want := "*4 -ERR DB index is out of range " + elsewhere + " +OK 0"; got != want {
		t.Errorf("EXEC is answered %q, want %q", got, want)
	}
	w.asks("SELECT 1 -> -ERR DB index is out of range\nRESET -> +RESET\nGET k -> 0")
}

// CONFIG GET tells how long a value may be, by the bound of the port or that of payloads.
func TestLargestValue(t *testing.T) {
	for _, bounds := range []struct{ value, payload int }{{0, 1000}, {1000, 64 << 10}} {
		w := newRig(t, Config{MaxValue: bounds.value}, tasks.Config{MaxPayload: bounds.payload}).dial()
		w.ask("*2 proto-max-bulk-len 1000", "CONFIG", "GET", "proto-max-bulk-len")
		w.ask("+OK", "SET", "k", strings.Repeat("v", 1000))
		large := "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"
		for _, command := range [][]string{{"SET", "k", strings.Repeat("v", 1001)}, {"APPEND", "k", "v"}, {"MSET", "k", strings.Repeat("v", 1001)}, {"SETRANGE", "k", "1000", "v"}} {
			w.ask(large, command...)
			w.ask("+OK", "MULTI")
			w.ask("+QUEUED", command...)
			w.ask("*1 "+large, "EXEC")
		}
		w.ask(":1000", "STRLEN", "k")
	}
}

// What is wrong with an argument is answered as Redis does, and EXEC with one ends the transaction.
func TestOddArgumentsAsRedis(t *testing.T) {
	real, ours := redistest.Start(t), newRig(t, Config{}, tasks.Config{})
	script := "MULTI\nSET k 1\nEXEC x\nEXEC\nEXEC x\nSELECT 99999999999\nSELECT 0x1\nHELLO 03\nHELLO +3\nSCAN \"\"\nSCAN x"
	if want, got := exchange(t, real.Addr, script), exchange(t, ours.addr, script); got != want {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}
