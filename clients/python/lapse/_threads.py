"""The worker with handlers in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from ._aclient import AsyncClient
from ._ahttp import AsyncTransport
from ._client import Client
from ._core import Span, bounded
from ._run import Context, OnError, WorkerStats
from ._worker import AsyncWorker
from .types import Delivery


class Worker:
    """Receives the tasks of one topic as AsyncWorker does, with handlers in threads.

    handler: a function of a delivery and its Context. All other arguments are those of AsyncWorker,
    but for concurrency, which is at most 1,000.
    """

    def __init__(
        self, client: Client, topic: str, handler: Callable[[Delivery, Context], object], *, concurrency: int = 16, prefetch: int = 0,
        lease: Span = "30s", wait: Span = "30s", grace: Span = "10s", on_failure: Literal["release", "bury"] = "release",
        on_error: OnError | None = None,
    ) -> None:
        bounded("concurrency", concurrency, 1, 1000)
        own = object.__new__(AsyncClient)
        own._o, own._transport = client._o, AsyncTransport()
        self._worker = AsyncWorker(own, topic, self._in_thread, concurrency=concurrency, prefetch=prefetch, lease=lease, wait=wait,
                                   grace=grace, on_failure=on_failure, on_error=on_error)
        self._worker._cancels = False
        self._handler = handler
        self._threads: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._concurrency = concurrency

    @property
    def topic(self) -> str:
        """The topic whose tasks it receives."""
        return self._worker.topic

    @property
    def stats(self) -> WorkerStats:
        """What it has done so far, and what it has under way."""
        return self._worker.stats

    def run(self) -> None:
        """Receives until stop is called, as AsyncWorker.run does. Ctrl-C is a call of stop, after
        which run returns; a second one leaves the deliveries open."""
        with self._lock:
            if self._threads is not None:
                raise RuntimeError("the worker runs already")
            self._threads = ThreadPoolExecutor(self._concurrency, f"lapse-{self.topic}")
        try:
            asyncio.run(self._main())
        except KeyboardInterrupt:
            pass  # the worker has stopped
        finally:
            with self._lock:
                threads, self._threads, self._loop = self._threads, None, None
            threads.shutdown(wait=False)

    def stop(self) -> None:
        """Has run stop, from any thread or a signal handler. It does not wait for that."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._stop)
            except RuntimeError:
                pass  # it has ended meanwhile

    def _stop(self) -> None:
        if (run := self._worker._run) is not None:
            run.stop()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._worker.run()
        finally:
            await self._worker._client.close()

    async def _in_thread(self, delivery: Delivery, context: Context) -> None:
        error = await asyncio.get_running_loop().run_in_executor(self._threads, self._failure, delivery, context)
        if isinstance(error, StopIteration):  # which no coroutine can raise
            raise RuntimeError("the handler raised StopIteration") from error
        if error is not None:
            raise error

    def _failure(self, delivery: Delivery, context: Context) -> BaseException | None:
        """Calls the handler, and returns what it raises: no future can hold a StopIteration."""
        try:
            self._handler(delivery, context)
        except BaseException as e:
            return e
        return None
