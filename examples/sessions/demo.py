"""Anna comes back again and again, Ben does not, and Cleo signs out."""

import os
import queue
import threading

import redis

from sessions import Sessions

url = os.environ.get("REDIS_URL", "redis://127.0.0.1:7479")
sessions = Sessions(redis.Redis.from_url(url, decode_responses=True), idle_ms=1500)
ended = queue.Queue()


def listen():
    for user in sessions.expired():
        ended.put(user)


threading.Thread(target=listen, daemon=True).start()
anna, ben, cleo = (sessions.begin(user) for user in ("anna", "ben", "cleo"))
sessions.end(cleo)
while True:
    try:
        print(f"the session of {ended.get(timeout=0.3)} has expired", flush=True)
        break
    except queue.Empty:
        sessions.use(anna)
print("anna is", "signed in" if sessions.use(anna) else "signed out", flush=True)
print(f"the session of {ended.get()} has expired", flush=True)
print("anna is", "signed in" if sessions.use(anna) else "signed out", flush=True)
