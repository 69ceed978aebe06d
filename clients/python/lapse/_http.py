"""HTTP over the standard library's http.client. Connections are kept, and used by one call at a time."""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ._core import Answer, Call, EventParser, Options, SILENCE, TooLong, bad_answer, broken, readable, stream_ended

_MOST_IDLE = 64


class Transport:
    """Makes requests. It is safe for use by several threads, and after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._pid = os.getpid()

    def send(self, o: Options, call: Call, timeout: float) -> Answer:
        """Makes one request. It raises a LapseError if there is no answer."""
        until = time.monotonic() + timeout
        sent = False
        conn = None
        try:
            conn = self._connection(o, until)
            sent = True
            response = self._request(o, conn, call, until)
            body = b"".join(_pieces(conn, response, until, o.max_answer))
            response.close()  # the connection takes no other request before
        except (OSError, http.client.HTTPException, TooLong) as e:
            if conn is not None:
                conn.close()
            raise broken(call, e, sent) from e
        except BaseException:
            if conn is not None:
                conn.close()
            raise
        if response.will_close:
            conn.close()
        else:
            self._keep(conn)
        return Answer(response.status, response.headers, body)

    def open(self, o: Options, call: Call, timeout: float) -> Events:
        """Opens a stream of events."""
        until = time.monotonic() + timeout
        conn = None
        try:
            conn = self._connection(o, until)
            response = self._request(o, conn, call, until)
            if response.status != 200:
                Answer(response.status, response.headers, b"".join(_pieces(conn, response, until, o.max_answer))).checked(call)
            if response.headers.get_content_type() != "text/event-stream":
                raise bad_answer(call, "is no stream of events")
            return Events(conn, response, call)
        except (OSError, http.client.HTTPException, TooLong) as e:
            if conn is not None:
                conn.close()
            raise broken(call, e, True) from e
        except BaseException:
            if conn is not None:
                conn.close()
            raise

    def close(self) -> None:
        """Ends the connections that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    def _connection(self, o: Options, until: float) -> http.client.HTTPConnection:
        """Returns a connection: one that is idle, or a new one."""
        with self._lock:
            if self._pid != os.getpid():
                self._idle, self._pid = [], os.getpid()  # those of the parent are its own
        while True:
            with self._lock:
                conn = self._idle.pop() if self._idle else None
            if conn is None:
                break
            if conn.sock is not None and not readable(conn.sock.fileno()):
                return conn
            conn.close()
        left = max(until - time.monotonic(), 0.001)
        if o.scheme == "https":
            conn = http.client.HTTPSConnection(o.host, o.port, timeout=left, context=o.context)
        else:
            conn = http.client.HTTPConnection(o.host, o.port, timeout=left)
        try:
            conn.connect()
        except BaseException:
            conn.close()
            raise
        return conn

    def _keep(self, conn: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(conn)
                return
        conn.close()

    @staticmethod
    def _request(o: Options, conn: http.client.HTTPConnection, call: Call, until: float) -> http.client.HTTPResponse:
        target, headers = call.request(o)
        _set_timeout(conn, until)
        conn.putrequest(call.method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            conn.putheader(name, value)
        conn.endheaders(call.body)
        _set_timeout(conn, until)
        return conn.getresponse()


def _set_timeout(conn: http.client.HTTPConnection, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    if conn.sock is not None:
        conn.sock.settimeout(left)


def _pieces(conn: http.client.HTTPConnection, response: http.client.HTTPResponse, until: float, most: int) -> Iterator[bytes]:
    size = 0
    while True:
        _set_timeout(conn, until)
        piece = response.read1(1 << 16)
        if not piece:
            return
        size += len(piece)
        if size > most:
            raise TooLong(most)
        yield piece


class Events:
    """A stream of events, open from the moment that it was made. Iterate over it; leave it with
    close(), or by a with statement."""

    def __init__(self, conn: http.client.HTTPConnection, response: http.client.HTTPResponse, call: Call) -> None:
        self._conn, self._response, self._parser = conn, response, EventParser(call)
        self._ready: list[dict[str, Any]] = []

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> dict[str, Any]:
        while not self._ready:
            try:
                if self._conn.sock is not None:
                    self._conn.sock.settimeout(SILENCE)
                piece = self._response.read1(1 << 16)
            except TimeoutError as e:
                self.close()
                raise stream_ended("unreachable", "the server has fallen silent") from e
            except (OSError, ValueError, http.client.HTTPException) as e:
                self.close()
                raise stream_ended("unreachable", f"the event stream broke: {e}") from e
            if not piece:
                self.close()
                raise stream_ended("shutting_down", "the server has ended the event stream")
            self._ready = self._parser.feed(piece)
        return self._ready.pop(0)

    def close(self) -> None:
        """Ends the stream."""
        self._response.close()
        self._conn.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


