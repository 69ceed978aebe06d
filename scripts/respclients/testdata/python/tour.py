"""What a program does with redis-py: tour.py HOST PORT PASSWORD hiredis|python."""

import sys
import time

import redis
from redis.connection import HiredisParser, PythonParser

host, port, password = sys.argv[1], int(sys.argv[2]), sys.argv[3]
parser = {"hiredis": HiredisParser, "python": PythonParser}[sys.argv[4]]


def client(**more):
    settings = {"host": host, "port": port, "password": password, "client_name": "tour"}
    pool = redis.ConnectionPool(parser_class=parser, **(settings | more))
    return redis.Redis(connection_pool=pool)


def ok(step):
    print("ok", step, flush=True)


def check(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


def within(seconds, yes):
    end = time.time() + seconds
    while not (found := yes()):
        if time.time() > end:
            raise AssertionError(f"still waiting after {seconds} s")
        time.sleep(0.01)
    return found


def raised(kind, f):
    try:
        f()
    except kind as err:
        return str(err)
    raise AssertionError(f"no {kind.__name__}")


r = client(decode_responses=True)


def connection():
    check(r.ping(), True)
    check(r.client_getname(), "tour")
    assert r.client_id() > 0
    assert r.info()["redis_version"]
    assert "db0" in r.info("keyspace") or r.dbsize() == 0
    check(r.echo("hello"), "hello")
    assert abs(r.time()[0] - time.time()) < 10
    assert r.command_count() > 50
    assert "WRONGPASS" in raised(redis.RedisError, lambda: client(password="wrong").ping())
    assert "unknown command" in raised(redis.ResponseError, lambda: r.execute_command("NOSUCH"))
    by_user = client(username="default", decode_responses=True)
    check(by_user.ping(), True)


def keys():
    check(r.set("k", "v", ex=100), True)
    check(r.get("k"), "v")
    assert 99 <= r.ttl("k") <= 100
    check(r.expire("k", 50), True)
    assert 49_000 < r.pttl("k") <= 50_000
    check(r.persist("k"), True)
    check(r.ttl("k"), -1)
    check(r.expireat("k", int(time.time()) + 60), True)
    check(r.set("k", "w", nx=True), None)
    check(r.set("k", "w", xx=True, keepttl=True), True)
    assert r.ttl("k") > 50
    check(r.set("k", "x", px=90_000, get=True), "w")
    check(r.getset("k", "y"), "x")
    check(r.setex("k2", 70, "z"), True)
    check(r.psetex("k3", 70_000, "z"), True)
    check(r.setnx("k4", "z"), True)
    check(r.getex("k2", ex=80), "z")
    check(r.getdel("k4"), "z")
    check(r.mset({"m1": "1", "m2": "2"}), True)
    check(r.mget("m1", "missing", "m2"), ["1", None, "2"])
    check(r.exists("k", "k2", "missing"), 2)
    check(r.type("k"), "string")
    check(r.append("m1", "23"), 3)
    check(r.strlen("m1"), 3)
    check(r.rename("m1", "m3"), True)
    check(r.get("m3"), "123")
    check(r.delete("k", "k2", "k3", "m2", "m3", "missing"), 5)
    check(r.get("k"), None)
    check(r.ttl("k"), -2)
    raw = client()
    binary = bytes(range(256))
    check(raw.set(binary, binary, ex=60), True)
    check(raw.get(binary), binary)
    check(raw.unlink(binary), 1)


def numbers():
    check(r.incr("n"), 1)
    check(r.incrby("n", 9), 10)
    check(r.decr("n"), 9)
    check(r.incrbyfloat("n", 0.5), 9.5)
    raised(redis.ResponseError, lambda: r.incr("n"))
    check(r.delete("n"), 1)


def scan():
    names = {f"scan:{i}" for i in range(250)}
    with r.pipeline(transaction=False) as p:
        for name in names:
            p.set(name, "v", ex=300)
        check(p.execute(), [True] * 250)
    check(set(r.scan_iter("scan:*", count=17)), names)
    check(set(r.keys("scan:*")), names)
    check(set(r.keys("scan:?")), {f"scan:{i}" for i in range(10)})
    assert r.dbsize() >= 250
    check(r.delete(*names), 250)


def transactions():
    with r.pipeline() as p:
        p.set("t", "1", ex=60).incr("t").get("t").ttl("t")
        check(p.execute()[:3], [True, 2, "2"])
    with r.pipeline() as p:
        p.watch("t")
        r.set("t", "5")
        p.multi()
        p.set("t", "9")
        raised(redis.WatchError, p.execute)
    check(r.transaction(lambda p: (p.multi(), p.incr("t")), "t"), [6])
    r.delete("t")


class Events:
    """Events are the expired events that a subscriber has received."""

    def __init__(self):
        self.at = {}
        self.pubsub = r.pubsub(ignore_subscribe_messages=True)
        self.pubsub.psubscribe("__key*__:exp*")
        self.pubsub.subscribe("__keyevent@0__:expired", "chat")

    def read(self):
        """read receives for a moment."""
        message = self.pubsub.get_message(timeout=0.05)
        if message and message["channel"].startswith("__keyevent@0__:"):
            self.at.setdefault(message["data"], []).append((message["type"], time.time()))
        return message


def subscriptions(events):
    r.config_set("notify-keyspace-events", "Ex")
    assert "E" in r.config_get("notify-keyspace-events")["notify-keyspace-events"]
    due, lateness = {}, []
    for i in range(20):
        due[f"e:{i}"] = time.time() + 0.3 + i / 100
        r.set(f"e:{i}", "v", px=300 + i * 10)

    def all_there():
        events.read()
        return all(len(events.at.get(key, [])) == 2 for key in due)

    within(20, all_there)
    for key, at in due.items():
        check(sorted(kind for kind, _ in events.at[key]), ["message", "pmessage"])
        lateness += [moment - at for _, moment in events.at[key]]
    if min(lateness) < -0.001 or max(lateness) > 2:
        raise AssertionError(f"from {min(lateness)} to {max(lateness)} s late")
    print(f"late by at most {max(lateness) * 1000:.1f} ms", flush=True)
    check(r.publish("chat", "hello"), 1)
    within(5, lambda: (m := events.read()) and m["channel"] == "chat")
    check(r.pubsub_numsub("chat"), [("chat", 1)])


def streams():
    name = "expired:jobs"
    check(r.xgroup_create(name, "workers", "$", mkstream=True), True)
    raised(redis.ResponseError, lambda: r.xgroup_create(name, "workers", "$", mkstream=True))
    check(r.xreadgroup("workers", "w1", {name: ">"}, count=10, block=20), [])
    for i in range(10):
        r.set(f"job:{i}", f"value {i}", px=50)
    entries = {}

    def read():
        for _, list_ in r.xreadgroup("workers", "w1", {name: ">"}, count=10, block=2000):
            entries.update(list_)
        return len(entries) == 10

    within(20, read)
    check(sorted(fields["key"] for fields in entries.values()), [f"job:{i}" for i in range(10)])
    check(sorted(fields["value"] for fields in entries.values()), [f"value {i}" for i in range(10)])
    ids = sorted(entries)
    pending = r.xpending(name, "workers")
    check((pending["pending"], pending["consumers"]), (10, [{"name": "w1", "pending": 10}]))
    check(len(r.xpending_range(name, "workers", "-", "+", 100)), 10)
    check(r.xack(name, "workers", *ids[:8]), 8)
    check(r.xack(name, "workers", *ids[:8]), 0)
    own = r.xreadgroup("workers", "w1", {name: "0"})[0][1]
    check(len(own), 2)
    claimed = r.xautoclaim(name, "workers", "w2", 0, "0-0", count=10)
    claimed = claimed[1] if isinstance(claimed[0], str) else claimed
    check(len(claimed), 2)
    assert r.xlen(name) >= 2
    check(r.xack(name, "workers", *ids[8:]), 2)
    check(r.xpending(name, "workers")["pending"], 0)
    check([g["name"] for g in r.xinfo_groups(name)], ["workers"])
    check(r.type(name), "stream")


def restart(events):
    r.set("after", "v", px=4000)
    r.set("job:after", "v", px=4000)
    r.set("kept", "v", ex=600)
    print("restart", flush=True)
    sys.stdin.readline()

    def again(f):
        try:
            return f()
        except (redis.ConnectionError, redis.TimeoutError):
            return None

    check(within(20, lambda: again(lambda: r.get("kept"))), "v")
    within(20, lambda: (again(events.read), "after" in events.at)[1])

    def job():
        return again(lambda: r.xreadgroup("workers", "w1", {"expired:jobs": ">"}, block=1000))

    (_, [(entry, fields)]), = within(20, job)
    check(fields["key"], "job:after")
    check(r.xack("expired:jobs", "workers", entry), 1)


connection()
ok("connection")
keys()
ok("keys")
numbers()
ok("numbers")
scan()
ok("scan")
transactions()
ok("transactions")
events = Events()
subscriptions(events)
ok("subscriptions")
streams()
ok("streams")
restart(events)
ok("restart")
