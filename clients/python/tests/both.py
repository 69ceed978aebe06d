"""Runs a test of calls with both clients: the one for asyncio is driven by a loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import lapse


class Blocking:
    """An AsyncClient, or what it has made, that blocks."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._wrap(attribute(*args, **kwargs))

        return call

    def _wrap(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            value = self._loop.run_until_complete(value)
        return Blocking(value, self._loop) if hasattr(value, "__anext__") or isinstance(value, lapse.AsyncClient) else value

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            return self._loop.run_until_complete(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self._loop.run_until_complete(self._inner.aclose() if hasattr(self._inner, "aclose") else self._inner.close())
