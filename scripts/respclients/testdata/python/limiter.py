"""A limiter of calls, by a script of redis-py: limiter.py NAME HOST:PORT...

Each line of the output is a call that was counted: the key of its window, which call it was, when it
began, and how many milliseconds it took. Or it is one of which it is not known whether it counts.
"""

import os
import sys
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

addresses = [a.rsplit(":", 1) for a in sys.argv[2:]]
once = Retry(NoBackoff(), 0)
clients = [redis.Redis(host=h, port=int(p), password=os.environ.get("PASSWORD"), socket_timeout=3, socket_connect_timeout=1, retry=once) for h, p in addresses]
SCRIPT = """
local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return n
"""
scripts = [c.register_script(SCRIPT) for c in clients]
at = 0


def say(line):
    """say writes a line at once: the process may be killed at any moment."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


while True:
    begun = time.time()
    key = f"limit:{int(begun) // 5}"
    try:
        n = scripts[at](keys=[key], args=[600_000])
        say(f"counted {key} {n} {int(begun * 1000)} {int((time.time() - begun) * 1000)}")
    except redis.RedisError as err:
        answered = isinstance(err, redis.ResponseError)
        if answered and str(err).split(" ")[0] not in ("TRYAGAIN", "UNKNOWN", "LOADING"):
            raise
        if not answered or not str(err).startswith(("TRYAGAIN", "LOADING")):
            say(f"unknown {key}")
        at = (at + 1) % len(clients)
        time.sleep(0.1)
    time.sleep(0.005)
