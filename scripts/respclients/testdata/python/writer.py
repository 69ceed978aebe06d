"""Sets keys with TTLs by redis-py: writer.py NAME COUNT SEED HOST:PORT...

Two keys of three are orders, the others are jobs. Some orders are deleted, and some get a longer
TTL. None is deleted whose SET was repeated: a node that stood still may run the first one after the
DEL. A command without an answer, or with an error that asks for it, is repeated, at the next
address. Each line of the output is a key that is to expire, and the milliseconds between which its
deadline is, or one that was deleted.
"""

import os
import random
import sys
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

name, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
addresses = [a.rsplit(":", 1) for a in sys.argv[4:]]
random.seed(seed)
once = Retry(NoBackoff(), 0)
clients = [redis.Redis(host=h, port=int(p), password=os.environ.get("PASSWORD"), socket_timeout=3, decode_responses=True, retry=once) for h, p in addresses]
at = 0
BATCH = 20


def now():
    return int(time.time() * 1000)


def retried(command, *args):
    """retried gives up when an error is not one that time mends."""
    answer = None
    for _ in range(400):
        begun = now()
        answer = pipelined([(command, *args)])[0]
        if not isinstance(answer, Exception):
            return answer, begun, now()
    raise answer


def pipelined(commands):
    """pipelined returns the answers, or errors."""
    global at
    try:
        with clients[at].pipeline(transaction=False) as p:
            for c in commands:
                p.execute_command(*c)
            answers = p.execute(raise_on_error=False)
    except (redis.ConnectionError, redis.TimeoutError) as err:
        answers = [err] * len(commands)
    for a in answers:
        if isinstance(a, redis.ResponseError) and str(a).split(" ")[0] not in ("TRYAGAIN", "UNKNOWN", "LOADING"):
            raise a
    if any(isinstance(a, Exception) for a in answers):
        at = (at + 1) % len(clients)
        time.sleep(0.1)
    return answers


for first in range(0, count, BATCH):
    keys = []
    for i in range(first, min(first + BATCH, count)):
        kind = "job" if i % 3 == 2 else "order"
        keys.append((i, f"{kind}:{name}:{i}", 8000 + random.randrange(12000)))
    begun, left, due, repeated = {}, keys, {}, set()
    while left:
        for _, key, _ in left:
            begun.setdefault(key, now())
        answers = pipelined([("SET", key, f"value of {key}", "PX", ttl) for _, key, ttl in left])
        for (_, key, ttl), a in zip(left, answers):
            if not isinstance(a, Exception):
                due[key] = (begun[key] + ttl, now() + ttl)
        left = [k for k, a in zip(left, answers) if isinstance(a, Exception)]
        repeated.update(key for _, key, _ in left)
    for i, key, ttl in keys:
        if i % 30 == 1 and key not in repeated:
            retried("DEL", key)
            print("del", key, flush=False)
            continue
        if i % 30 == 4:
            answer, earliest, latest = retried("PEXPIRE", key, ttl + 2000)
            if answer != 1:
                raise RuntimeError(f"{key} is gone")
            due[key] = (min(earliest + ttl + 2000, due[key][0] + 2000), latest + ttl + 2000)
        print("set", key, *due[key], flush=False)
    sys.stdout.flush()
