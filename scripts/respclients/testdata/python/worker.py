"""Takes expired keys and acknowledges them by redis-py: worker.py NAME HOST:PORT...

Each line of the output says that a key was got, that it is about to be acknowledged, or that this
was counted. Entries that another worker has had for two seconds are taken over.
"""

import os
import sys
import time

import redis

name = sys.argv[1]
addresses = [a.rsplit(":", 1) for a in sys.argv[2:]]
STREAM, GROUP = "expired:jobs", "workers"
clients = [redis.Redis(host=h, port=int(p), password=os.environ.get("PASSWORD"), socket_timeout=5, decode_responses=True) for h, p in addresses]
at, looked = 0, 0.0


def work(r):
    """work handles what is there."""
    global looked
    entries = []
    if time.time() > looked + 1:
        looked = time.time()
        claimed = r.xautoclaim(STREAM, GROUP, name, 2000, "0-0", count=100)[1]
        entries += [(entry, fields) for entry, fields in claimed if fields]
    for _, list_ in r.xreadgroup(GROUP, name, {STREAM: ">"}, count=50, block=500):
        entries += list_
    got = int(time.time() * 1000)
    for _, fields in entries:
        print("got", fields["key"], got)
    sys.stdout.flush()
    for i in range(0, len(entries), 10):
        part = entries[i : i + 10]
        for _, fields in part:
            print("try", fields["key"])
        sys.stdout.flush()
        try:
            counted = r.xack(STREAM, GROUP, *(entry for entry, _ in part))
        except redis.RedisError:
            counted = 0
        for _, fields in part:
            if counted == len(part):
                print("ack", fields["key"])
    sys.stdout.flush()


while True:
    try:
        work(clients[at])
    except (redis.ConnectionError, redis.TimeoutError):
        at = (at + 1) % len(clients)
        time.sleep(0.1)
    except redis.ResponseError as err:
        if str(err).split(" ")[0] not in ("TRYAGAIN", "UNKNOWN", "LOADING"):
            raise
        at = (at + 1) % len(clients)
        time.sleep(0.1)
