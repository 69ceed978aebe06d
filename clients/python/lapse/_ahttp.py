"""HTTP/1.1 over asyncio's streams. Connections are kept, and used by one call at a time."""

from __future__ import annotations

import asyncio
import http.client
import io
from collections.abc import AsyncIterator
from email.message import Message
from types import TracebackType
from typing import Any

from ._core import Answer, Call, EventParser, Options, SILENCE, TooLong, bad_answer, broken, readable, stream_ended

_MOST_IDLE = 64
_LONGEST_HEAD = 1 << 16


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.reusable = False

    def close(self) -> None:
        self.writer.close()

    def over(self) -> bool:
        """Reports whether the server has closed the idle connection, also if the loop has not seen it yet."""
        socket = self.writer.get_extra_info("socket")
        return self.reader.at_eof() or self.writer.is_closing() or readable(socket.fileno())

    async def request(self, o: Options, call: Call) -> tuple[int, Message]:
        """Sends a request, and reads the head of the answer."""
        target, headers = call.request(o)
        headers["Connection"] = "keep-alive"
        head = f"{call.method} {target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
        self.reusable = False
        self.writer.write(head.encode("latin-1") + (call.body or b""))
        await self.writer.drain()
        while True:
            text = io.BytesIO(await self.reader.readuntil(b"\r\n\r\n"))
            version, status, *_ = text.readline().split(None, 2) + [b"", b""]
            if not version.startswith(b"HTTP/1.") or not (len(status) == 3 and status.isdigit()):
                raise http.client.BadStatusLine("no HTTP/1.1")
            fields = http.client.parse_headers(text)
            if int(status) >= 200:
                self.reusable = version == b"HTTP/1.1" and fields.get("Connection", "").lower() != "close"
                return int(status), fields

    async def pieces(self, status: int, headers: Message) -> AsyncIterator[bytes]:
        """Yields the body."""
        if status in (204, 304):
            return
        if headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
                while size:
                    piece = await self.reader.read(min(size, 1 << 16))
                    if not piece:
                        raise asyncio.IncompleteReadError(b"", size)
                    size -= len(piece)
                    yield piece
                await self.reader.readexactly(2)
            while await self.reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
            return
        if (length := headers.get("Content-Length")) is not None:
            left = int(length)
            while left:
                piece = await self.reader.read(min(left, 1 << 16))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(piece)
                yield piece
            return
        self.reusable = False
        while piece := await self.reader.read(1 << 16):
            yield piece


_FAILURES = (OSError, EOFError, ValueError, asyncio.LimitOverrunError, http.client.HTTPException, TooLong)


class AsyncTransport:
    """Makes requests."""

    def __init__(self) -> None:
        self._idle: list[_Connection] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, o: Options, call: Call, timeout: float) -> Answer:
        """Makes one request. It raises a LapseError if there is no answer."""
        sent = False
        conn: _Connection | None = None
        try:
            async with asyncio.timeout(timeout):
                conn = await self._connection(o)
                sent = True
                status, headers = await conn.request(o, call)
                body = await _read(conn, status, headers, o.max_answer)
        except _FAILURES as e:
            if conn is not None:
                conn.close()
            raise broken(call, e, sent) from e
        except BaseException:
            if conn is not None:
                conn.close()
            raise
        if conn.reusable and len(self._idle) < _MOST_IDLE:
            self._idle.append(conn)
        else:
            conn.close()
        return Answer(status, headers, body)

    async def open(self, o: Options, call: Call, timeout: float) -> AsyncEvents:
        """Opens a stream of events."""
        conn: _Connection | None = None
        try:
            async with asyncio.timeout(timeout):
                conn = await self._connection(o)
                status, headers = await conn.request(o, call)
                if status != 200:
                    Answer(status, headers, await _read(conn, status, headers, o.max_answer)).checked(call)
                if headers.get_content_type() != "text/event-stream":
                    raise bad_answer(call, "is no stream of events")
            return AsyncEvents(conn, conn.pieces(status, headers), call)
        except _FAILURES as e:
            if conn is not None:
                conn.close()
            raise broken(call, e, True) from e
        except BaseException:
            if conn is not None:
                conn.close()
            raise

    async def close(self) -> None:
        """Ends the connections that are idle."""
        idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()
        for conn in idle:
            try:
                await conn.writer.wait_closed()
            except OSError:
                pass

    async def _connection(self, o: Options) -> _Connection:
        """Returns a connection: one that is idle, or a new one."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._idle, self._loop = [], loop  # those of another loop cannot be used here
        while self._idle:
            conn = self._idle.pop()
            if not conn.over():
                return conn
            conn.close()
        return _Connection(*await asyncio.open_connection(o.host, o.port, ssl=o.context, limit=_LONGEST_HEAD))


async def _read(conn: _Connection, status: int, headers: Message, most: int) -> bytes:
    all_, size = [], 0
    async for piece in conn.pieces(status, headers):
        size += len(piece)
        if size > most:
            raise TooLong(most)
        all_.append(piece)
    return b"".join(all_)


class AsyncEvents:
    """A stream of events, open from the moment that it was made. Iterate over it; leave it with
    aclose(), or by an async with statement."""

    def __init__(self, conn: _Connection, pieces: AsyncIterator[bytes], call: Call) -> None:
        self._conn, self._pieces, self._parser = conn, pieces, EventParser(call)
        self._ready: list[dict[str, Any]] = []

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> dict[str, Any]:
        while not self._ready:
            try:
                async with asyncio.timeout(SILENCE):
                    piece = await anext(self._pieces, b"")
            except TimeoutError as e:
                await self.aclose()
                raise stream_ended("unreachable", "the server has fallen silent") from e
            except _FAILURES as e:
                await self.aclose()
                raise stream_ended("unreachable", f"the event stream broke: {e}") from e
            except BaseException:
                await self.aclose()
                raise
            if not piece:
                await self.aclose()
                raise stream_ended("shutting_down", "the server has ended the event stream")
            self._ready = self._parser.feed(piece)
        return self._ready.pop(0)

    async def aclose(self) -> None:
        """Ends the stream."""
        self._conn.close()

    async def __aenter__(self) -> AsyncEvents:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()
