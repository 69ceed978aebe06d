"""What the two clients share: calls, what is known about repeating them, and their answers."""

from __future__ import annotations

import datetime
import json
import random
import secrets
import select
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any, Literal

from ._errors import LapseError, problem_of

#: A span of time: a timedelta, or text such as "30m", "90s" or "1d12h".
Span = datetime.timedelta | str
#: A time: a datetime that knows its zone, or RFC 3339 text.
Time = datetime.datetime | str

#: What a second request adds to the first: nothing ever happens; the same thing, once; the effect
#: again.
Effect = Literal["reads", "same", "again"]

#: Seconds more for a call that may touch all tasks of a topic or a group.
WHOLE_TOPIC = 120.0
#: A server writes something to a stream of events every 15 seconds.
SILENCE = 45.0
LONG_EVENT = 1 << 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


#: Stands for a payload that is not given: None is the payload null.
MISSING: Any = _Missing()


@dataclass(frozen=True)
class Options:
    """Options of a client."""

    scheme: str
    host: str
    port: int
    path: str  # without a slash at the end
    token: str | None
    timeout: float
    retries: int
    max_wait: float
    max_answer: int
    context: ssl.SSLContext | None
    on_repeat: OnRepeat | None


@dataclass(frozen=True)
class Repetition:
    """Says why and when a call is repeated."""

    method: str
    path: str
    failed: int  # attempts that have failed so far
    pause: float  # seconds until the next one
    error: LapseError  # of the last one


OnRepeat = Callable[[Repetition], object]


def options(
    url: str, token: str | None, timeout: float, retries: int, max_wait: float, max_answer: int,
    context: ssl.SSLContext | None, on_repeat: OnRepeat | None,
) -> Options:
    """Checks options."""
    u = urllib.parse.urlsplit(url)
    if u.scheme not in ("http", "https") or not u.hostname:
        raise ValueError("url must be http://host:port or https://host:port")
    if u.username or u.password or u.query or u.fragment:
        raise ValueError("url must have neither a user nor a query; a token is an option of its own")
    if token is not None and not (token and all("!" <= c <= "~" for c in token)):
        raise ValueError("token must be printable ASCII without spaces")
    bounded("timeout", timeout, 0.001, 3600)
    bounded("retries", retries, 0, 100)
    bounded("max_wait", max_wait, 0, 3600)
    bounded("max_answer", max_answer, 1 << 10, 1 << 30)
    if u.scheme == "https" and context is None:
        context = ssl.create_default_context()
    port = u.port or (443 if u.scheme == "https" else 80)
    return Options(u.scheme, u.hostname, port, u.path.rstrip("/"), token, timeout, retries, max_wait, max_answer, context, on_repeat)


def bounded(name: str, value: float, low: float, high: float) -> None:
    """Checks a number."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low:g} to {high:g}")


@dataclass(frozen=True)
class RedrivenTopic:
    """How far a redrive has come with a topic."""

    topic: str
    requeued: int
    stopped: str = ""  # why the others stay dead
    over: bool = False


@dataclass
class Call:
    """One request, with what is known about repeating it."""

    method: str
    path: str
    effect: Effect
    query: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    extra: float = 0  # seconds on top of the time-out
    also: int = 0  # a status besides 2xx that is a success
    accept: str = "application/json"

    def __post_init__(self) -> None:
        for name, value in self.query.items():
            if value == "" or isinstance(value, (list, tuple)) and "" in value:
                raise ValueError(f"{name} must not be empty; None leaves it out")

    def request(self, o: Options) -> tuple[str, dict[str, str]]:
        """Returns the target and the headers."""
        pairs = []
        for name, value in self.query.items():
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if one is not None:
                    pairs.append((name, {True: "true", False: "false"}.get(one, one) if isinstance(one, bool) else one))
        target = o.path + self.path + ("?" + urllib.parse.urlencode(pairs) if pairs else "")
        host = f"[{o.host}]" if ":" in o.host else o.host
        headers = {"Host": f"{host}:{o.port}", "Accept": self.accept, "Accept-Encoding": "identity", "User-Agent": "lapse-python", **self.headers}
        if o.token:
            headers["Authorization"] = f"Bearer {o.token}"
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        if self.body is not None or self.method not in ("GET", "HEAD"):
            headers["Content-Length"] = str(len(self.body or b""))
        return target, headers


@dataclass
class Answer:
    """What a server has answered."""

    status: int
    headers: Message
    body: bytes

    def checked(self, call: Call) -> Answer:
        """Returns the answer to a call if it is a success."""
        if 200 <= self.status <= 299 or self.status == call.also:
            return self
        raise problem_of(self.status, self.headers.get("Retry-After"), self.body, call.effect == "again")

    def json(self, call: Call) -> Any:
        """Reads the JSON of the answer to a call."""
        try:
            return json.loads(self.body)
        except ValueError as e:
            raise bad_answer(call, "is not JSON") from e


class TooLong(Exception):
    """An answer is longer than it may be."""


def broken(call: Call, error: BaseException, sent: bool) -> LapseError:
    """Classifies a connection that failed. sent: the request may have reached the server."""
    if isinstance(error, TooLong):
        return bad_answer(call, f"is longer than {error} bytes")
    nothing = call.effect == "reads" or not sent
    detail = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    insecure = isinstance(error, ssl.SSLCertVerificationError)
    if nothing:
        return LapseError("unreachable", "The server cannot be reached", detail=detail, retryable=not insecure)
    return LapseError("outcome_unknown", "The outcome is unknown", detail=detail, retryable=call.effect != "again")


def bad_answer(call: Call, why: str) -> LapseError:
    return LapseError("bad_answer", "The answer cannot be read", detail=f"the answer to {call.method} {call.path} {why}")


def readable(socket: int) -> bool:
    """Reports whether a connection without a request can be read: then the server has closed it."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([socket], [], [], 0)[0])


class Attempts:
    """Decides whether a call is repeated, and when."""

    def __init__(self, o: Options, call: Call) -> None:
        self._o, self._call, self._n = o, call, 0
        self._open = False  # an attempt may have been carried out

    def pause(self, error: LapseError) -> float:
        """Returns how long to wait before the next attempt, or raises if there is none."""
        self._open = self._open or error.outcome_unknown
        pause = pause_after(self._o, self._n, error)
        if self._n >= self._o.retries or not error.retryable or pause is None:
            if self._open and error.harmless:
                raise LapseError(
                    "outcome_unknown", "The outcome is unknown", type=error.type, status=error.status,
                    detail=f"after an earlier attempt: {error}", retry_after=error.retry_after,
                    retryable=self._call.effect != "again") from error
            raise error
        self._n += 1
        if self._o.on_repeat is not None:
            self._o.on_repeat(Repetition(self._call.method, self._call.path, self._n, pause, error))
        return pause


def pause_after(o: Options, n: int, error: LapseError | None) -> float | None:
    """Returns what the server asks for, or longer with each attempt. A random part keeps callers
    from coming back all at once. None: the server asks for too much."""
    if error is not None and error.retry_after > 0:
        return None if error.retry_after > o.max_wait else error.retry_after * random.uniform(1, 1.25)
    most: float = min(_FIRST_PAUSE * 2 ** min(n, 10), _LONGEST_PAUSE, o.max_wait)
    return most * random.uniform(0.5, 1)


def path(prefix: str, name: str, rest: str = "") -> str:
    """Puts a name into a path. With an empty name it would be the path of another route."""
    if not isinstance(name, str) or name in ("", ".", ".."):
        raise ValueError("a name must be given")
    return prefix + urllib.parse.quote(name, safe="") + rest


def span(name: str, value: Any) -> Any:
    """Encodes a span of time."""
    if isinstance(value, datetime.timedelta):
        return value / datetime.timedelta(milliseconds=1)
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f'{name} must be a timedelta, or text such as "90s", "30m" or "1d12h"')


def seconds(name: str, value: Span | None) -> float:
    """Reads a span of time."""
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    rest, total = span(name, value) or "", 0.0
    while rest and rest != "0":
        digits = len(rest) - len(rest.lstrip("0123456789."))
        unit = next((u for u in ("ns", "us", "µs", "μs", "ms", "s", "m", "h", "d") if rest[digits:].startswith(u)), "")
        try:
            total += float(rest[:digits]) * _UNITS[unit]
        except (ValueError, KeyError):
            raise ValueError(f'{name} must be a timedelta, or text such as "90s", "30m" or "1d12h"') from None
        rest = rest[digits + len(unit):]
    return total


def instant(name: str, value: Any) -> Any:
    """Encodes a time."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name} must know its zone, such as datetime.now(timezone.utc)")
        return value.isoformat()
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{name} must be a datetime, or RFC 3339 text")


_SPANS = ("delay", "max_lateness", "lease", "wait", "shift", "spread", "dead_retention", "keep_finished",
          "max_age", "min_backoff", "max_backoff")
_TIMES = ("due_at", "due_from", "due_to", "died_from", "died_to")


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Encodes the spans and times of an object, and those of the objects in it."""
    out: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _SPANS:
            value = span(name, value)
        elif name in _TIMES:
            value = instant(name, value)
        elif name in ("retry", "filter", "delivery", "on_dead") and isinstance(value, Mapping):
            value = plain(value)
        out[name] = value
    return out


def given(**fields: Any) -> dict[str, Any]:
    """Leaves out what was not given, and encodes the rest."""
    return plain({k: v for k, v in fields.items() if v is not None and v is not MISSING})


def task(fields: Mapping[str, Any], payload: Any) -> dict[str, Any]:
    """Makes an object with a payload, of which None is the payload null."""
    return dict(fields) if payload is MISSING else {**fields, "payload": payload}


def encode(value: Any) -> bytes:
    """Writes JSON. A value that is no JSON is an error of the caller (TypeError, ValueError), and so
    is a lone surrogate, which UTF-8 cannot have (UnicodeEncodeError, a ValueError)."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def receipts_of(receipts: str | Iterable[str]) -> list[str]:
    return [receipts] if isinstance(receipts, str) else list(receipts)


def with_ids(error: LapseError, *, id: str | None = None, ids: list[str] | None = None) -> LapseError:
    """Adds the ids with which a call may be repeated to a failure that leaves its outcome open."""
    if error.outcome_unknown and error.id is None and error.ids is None:
        error.id, error.ids = id, ids
    return error


def new_id() -> str:
    """Makes an id as the server does for a task without one: a UUIDv7 (RFC 9562). Ids made later
    sort behind earlier ones, by the millisecond."""
    value = int(time.time() * 1000) << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class EventParser:
    """Reads server-sent events."""

    def __init__(self, call: Call) -> None:
        self._call, self._rest, self._data, self._number = call, b"", b"", 0

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Returns the events that are complete."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LONG_EVENT:
            raise bad_answer(self._call, "has an event that is too long")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                if self._data:
                    try:
                        events.append({**json.loads(self._data), "number": self._number})
                    except (ValueError, TypeError) as e:
                        raise bad_answer(self._call, "has an event that is not JSON") from e
                self._data = b""
            elif line.startswith(b"data:"):
                self._data += (b"\n" if self._data else b"") + line[5:].removeprefix(b" ")
            elif line.startswith(b"id:") and line[3:].strip().isdigit():
                self._number = int(line[3:])
        return events


def stream_ended(code: str, detail: str) -> LapseError:
    return LapseError(code, "The event stream has ended", detail=detail, retryable=True)
