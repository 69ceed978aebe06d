"""Sessions in Redis that end after a while without a request. Nothing here knows of Lapse."""

import json
import secrets

import redis

PREFIX = "session:"


class Sessions:
    def __init__(self, server: redis.Redis, idle_ms: int):
        self.server, self.idle_ms = server, idle_ms

    def begin(self, user: str) -> str:
        token = f"{user}:{secrets.token_urlsafe(16)}"
        self.server.set(PREFIX + token, json.dumps({"user": user}), px=self.idle_ms)
        return token

    def use(self, token: str) -> dict | None:
        """Returns the session, and has its time begin anew."""
        found = self.server.getex(PREFIX + token, px=self.idle_ms)
        return found and json.loads(found)

    def end(self, token: str) -> None:
        self.server.delete(PREFIX + token)

    def expired(self):
        """Generates the user of each session that has ended for want of requests."""
        with self.server.pubsub(ignore_subscribe_messages=True) as events:
            events.subscribe("__keyevent@0__:expired")
            for event in events.listen():
                key = event["data"]
                if key.startswith(PREFIX):
                    yield key.removeprefix(PREFIX).rpartition(":")[0]
