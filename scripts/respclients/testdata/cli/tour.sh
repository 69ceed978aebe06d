#!/usr/bin/env bash
# What a script does with redis-cli: tour.sh HOST PORT PASSWORD.
set -euo pipefail

export REDISCLI_AUTH=$3
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

host=$1 port=$2
cli() { redis-cli -h "$host" -p "$port" "$@"; }

# check WANT COMMAND... compares an answer.
check() {
	local want=$1 got
	shift
	got=$(cli "$@")
	[ "$got" = "$want" ] || { echo "$*: got '$got', want '$want'" >&2 && exit 1; }
}

# within SECONDS COMMAND... repeats a command until it succeeds.
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -le $end ] || { echo "still waiting: $*" >&2 && exit 1; }
		sleep 0.05
	done
}

check PONG PING
check hello ECHO hello
[[ $(cli INFO server) == *redis_version:* ]]
[[ $(cli COMMAND COUNT) -gt 50 ]]
[[ $(cli NOSUCH) == "ERR unknown command"* ]]
[[ $(REDISCLI_AUTH='' cli -a wrong --no-auth-warning PING 2>&1) == *WRONGPASS* ]]
[[ $(cli -3 HELLO) == *proto* ]]
echo ok connection

check OK SET k v EX 100
check v GET k
check 1 EXPIRE k 50
check 0 EXPIRE k 10 GT
check 1 PERSIST k
check -1 TTL k
check v SET k x GET XX KEEPTTL
check x SET k y EX 90 GET
check 90 TTL k
check y GETEX k PX 80000
check 1 SETNX k4 z
check z GETDEL k4
check OK MSET m1 1 m2 2
check $'1\n\n2' MGET m1 missing m2
check 2 EXISTS k m1 missing
check string TYPE k
check 3 APPEND m1 23
check OK RENAME m1 m3
check 123 GET m3
check 3 DEL k m2 m3 missing
check '' GET k
check -2 TTL k
check OK SET 'a b' $'c\td'
check $'c\td' GET 'a b'
check 1 UNLINK 'a b'
echo ok keys

check 1 INCR n
check 10 INCRBY n 9
check 9 DECR n
check 9.5 INCRBYFLOAT n 0.5
[[ $(cli INCR n) == "ERR value is not an integer"* ]]
check 1 DEL n
echo ok numbers

for i in $(seq 0 249); do printf 'SET scan:%d v EX 300\r\n' "$i"; done | cli --pipe >"$work/pipe"
grep -q 'errors: 0, replies: 250' "$work/pipe"
[ "$(cli --scan --pattern 'scan:*' | sort -u | wc -l)" = 250 ]
[ "$(cli KEYS 'scan:?' | wc -l)" = 10 ]
cli --scan --pattern 'scan:*' | xargs redis-cli -h "$host" -p "$port" DEL >"$work/deleted"
[ "$(cat "$work/deleted")" = 250 ]
echo ok scan

got=$(printf 'MULTI\nSET t 1 EX 60\nINCR t\nEXEC\nWATCH t\nSET t 5\nMULTI\nSET t 9\nEXEC\nGET t\nDEL t\n' | cli)
[ "$got" = $'OK\nQUEUED\nQUEUED\nOK\n2\nOK\nOK\nOK\nQUEUED\n\n5\n1' ]
echo ok transactions

check OK CONFIG SET notify-keyspace-events Ex
redis-cli -h "$host" -p "$port" SUBSCRIBE __keyevent@0__:expired chat >"$work/events" 2>&1 &
redis-cli -h "$host" -p "$port" PSUBSCRIBE '__key*__:exp*' >"$work/patterns" 2>&1 &
subscribed() { [[ $(cli PUBSUB NUMSUB chat) == $'chat\n1' && $(cli PUBSUB NUMPAT) == 1 ]]; }
within 10 subscribed
for i in $(seq 0 19); do check OK SET "e:$i" v PX $((300 + i * 10)); done
heard() { [ "$(grep -c '^e:' "$work/events")" = 20 ] && [ "$(grep -c '^e:' "$work/patterns")" = 20 ]; }
within 20 heard
check 1 PUBLISH chat hello
within 5 grep -q '^hello$' "$work/events"
echo ok subscriptions

stream=expired:jobs
check OK XGROUP CREATE $stream workers '$' MKSTREAM
[[ $(cli XGROUP CREATE $stream workers '$' MKSTREAM) == BUSYGROUP* ]]
check '' XREADGROUP GROUP workers w1 COUNT 10 BLOCK 20 STREAMS $stream '>'
for i in $(seq 0 9); do check OK SET "job:$i" "value $i" PX 50; done
: >"$work/read"
gathered() {
	cli XREADGROUP GROUP workers w1 COUNT 10 BLOCK 1000 STREAMS $stream '>' >>"$work/read"
	[ "$(grep -c '^value [0-9]$' "$work/read")" = 10 ]
}
within 20 gathered
mapfile -t ids < <(grep -E '^[0-9]+-[0-9]+$' "$work/read")
[ ${#ids[@]} = 10 ]
[[ $(cli XPENDING $stream workers) == 10$'\n'* ]]
check 8 XACK $stream workers "${ids[@]:0:8}"
check 0 XACK $stream workers "${ids[@]:0:8}"
[ "$(cli XAUTOCLAIM $stream workers w2 0 0-0 COUNT 10 | grep -c '^job:')" = 2 ]
check 2 XACK $stream workers "${ids[@]:8}"
[[ $(cli XPENDING $stream workers) == 0* ]]
[[ $(cli XINFO GROUPS $stream) == *workers* ]]
check stream TYPE $stream
echo ok streams

check OK SET after v PX 4000
check OK SET job:after v PX 4000
check OK SET kept v EX 600
echo restart
read -r
kept() { [ "$(cli GET kept 2>/dev/null)" = v ]; }
within 20 kept
# A subscriber of redis-cli ends with its connection: the event waits for the next one.
redis-cli -h "$host" -p "$port" SUBSCRIBE __keyevent@0__:expired >"$work/later" 2>&1 &
within 20 grep -q '^after$' "$work/later"
again() { cli XREADGROUP GROUP workers w1 BLOCK 1000 STREAMS $stream '>' >"$work/job" && grep -q '^job:after$' "$work/job"; }
within 20 again
check 1 XACK $stream workers "$(grep -E '^[0-9]+-[0-9]+$' "$work/job")"
echo ok restart
