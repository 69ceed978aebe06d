"""What libraries do that need scripts or conditions: libraries.py HOST PORT PASSWORD."""

import sys
import time

import redis
from redis.exceptions import LockError, LockNotOwnedError

r = redis.Redis(host=sys.argv[1], port=int(sys.argv[2]), password=sys.argv[3])


def ok(name):
    print("ok", name, flush=True)


def check(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


def fails(error, call, *args):
    try:
        call(*args)
    except error:
        return
    raise AssertionError(f"no {error}")


lock = r.lock("lock", timeout=10)
check(lock.acquire(), True)
check(r.lock("lock", timeout=10, blocking=False).acquire(), False)
check(lock.owned(), True)
lock.extend(50)
check(55 < r.ttl("lock") <= 60, True)
lock.extend(20, replace_ttl=True)
check(15 < r.ttl("lock") <= 20, True)
lock.reacquire()
check(5 < r.ttl("lock") <= 10, True)
lock.release()
check(r.exists("lock"), 0)
fails(LockError, lock.release)
with r.lock("lock", timeout=0.1) as late:
    time.sleep(0.15)
    other = r.lock("lock", timeout=10)
    check(other.acquire(), True)  # its time is over
    fails(LockNotOwnedError, late.extend, 10)
    fails(LockNotOwnedError, late.release)
    late.local.token = None
    check(other.owned(), True)
    other.release()
    late.acquire()
ok("redis-py Lock")

limit = r.register_script(
    """
    local n = redis.call('INCR', KEYS[1])
    if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
    return {n, redis.call('PTTL', KEYS[1])}
    """
)
n, left = limit(keys=["calls"], args=[60_000])
check((n, 59_000 < left <= 60_000), (1, True))
with r.pipeline() as p:
    limit(keys=["calls"], args=[60_000], client=p)
    p.get("calls")
    (n, left), value = p.execute()
check((n, value), (2, b"2"))
r.script_flush()
check(limit(keys=["calls"], args=[60_000])[0], 3)
check(r.script_exists(limit.sha), [True])
ok("redis-py register_script")
