"""Natural batching."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Gatherer(Generic[T]):
    """Makes calls of values that are added: a call takes all values that were added during the
    previous one. There is no timer, so that a single value does not wait."""

    def __init__(self, most: int, size: int, call: Callable[[list[T]], Awaitable[None]]) -> None:
        """At most ``most`` calls at once, of at most ``size`` values each."""
        self._most, self._size, self._call = most, size, call
        self._waiting: list[T] = []
        self._closed = False
        self._calls: set[asyncio.Task[None]] = set()

    def add(self, value: T) -> None:
        if not self._closed:
            self._waiting.append(value)
            self._start()

    def _start(self) -> None:
        if len(self._calls) < self._most:
            task = asyncio.create_task(self._work())
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def idle(self) -> None:
        """Returns once no call is under way and no value waits."""
        while self._calls:
            await asyncio.wait(self._calls)
            await asyncio.sleep(0)  # for the callbacks of those that were cancelled

    async def cancel(self) -> None:
        """Ends the calls under way, and drops the values that wait and those that are still added."""
        self._closed = True
        self._waiting.clear()
        for task in self._calls:
            task.cancel()
        await self.idle()

    async def _work(self) -> None:
        await asyncio.sleep(0)  # what is added at the same moment goes together
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
                await self._call(batch)
        finally:
            # Here, and not in a callback: a value that is added before that runs would wait for nobody.
            if (me := asyncio.current_task()) is not None:
                self._calls.discard(me)
            if self._waiting:  # the call has failed, and others are still to be made
                self._start()
