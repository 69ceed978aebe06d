"""What a worker is made of: its settings, its counts, and the state of a run."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ._core import Span, bounded, seconds
from ._errors import LapseError
from ._judgement import Judgement
from .types import Delivery

log = logging.getLogger("lapse")


class Context:
    """What a handler gets beside its delivery.

    A handler of Worker, which cannot be interrupted, may wait for, or look at, ``ended``. A handler
    of AsyncWorker is cancelled as well.
    """

    def __init__(self) -> None:
        #: Set when another receiver may have the task, or when the worker stops and its grace is over.
        self.ended = threading.Event()
        #: Why: a LapseError with the code "lease_lost" or "stopped".
        self.reason: LapseError | None = None

    def _end(self, reason: LapseError) -> None:
        if self.reason is None:
            self.reason = reason
            self.ended.set()


@dataclass
class WorkerStats:
    """Totals since the worker was made, and counts of this moment."""

    reserved: int = 0
    acked: int = 0
    released: int = 0
    buried: int = 0
    returned: int = 0  # given back before they began, because the worker stopped; no attempts
    lost: int = 0  # whose lease was lost before they were settled
    extended: int = 0
    waiting: int = 0
    running: int = 0
    unsettled: int = 0


OnError = Callable[[BaseException, Delivery | None], object]


@dataclass
class Settings:
    concurrency: int
    prefetch: int
    lease: float
    wait: float
    grace: float
    on_failure: Literal["release", "bury"]
    on_error: OnError


def settings_of(topic: str, concurrency: int, prefetch: int, lease: Span, wait: Span, grace: Span, on_failure: Literal["release", "bury"], on_error: OnError | None) -> Settings:
    if not topic:
        raise ValueError("the topic must be given")
    if on_failure not in ("release", "bury"):
        raise ValueError('on_failure must be "release" or "bury"')
    s = Settings(concurrency, prefetch, seconds("lease", lease), seconds("wait", wait), seconds("grace", grace), on_failure, on_error or _logged(topic))
    bounded("concurrency", concurrency, 1, 10_000)
    bounded("prefetch", prefetch, 0, 1000)
    bounded("lease", s.lease, 1, 86_400)
    bounded("wait", s.wait, 1, 60)
    bounded("grace", s.grace, 0.001, 86_400)
    return s


def _logged(topic: str) -> OnError:
    def on_error(error: BaseException, delivery: Delivery | None) -> None:
        if delivery is None:
            log.warning("worker of %s: %s", topic, error)
        else:
            log.warning("worker of %s: task %s, attempt %d: %s", topic, delivery["id"], delivery["attempt"], error, exc_info=None if isinstance(error, LapseError) else error)
    return on_error


class Held:
    """A delivery that is not settled yet."""

    def __init__(self, delivery: Delivery, until: float) -> None:
        self.delivery = delivery
        self.until = until  # the end of the lease, as far as it is known
        self.context = Context()
        self.task: asyncio.Task[None] | None = None  # its handler; None before that begins
        self.judgement: Judgement | None = None
        self.late = False
        self.lost = False


class Run:
    """One run of a worker."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()  # no more is to be reserved or begun
        self.freed = asyncio.Event()  # there may be room, or something has ended
        self.over = asyncio.Event()
        self.failure: BaseException | None = None  # what ended the run

    def stop(self) -> None:
        self.stopping.set()
        self.freed.set()

    def fail(self, error: BaseException) -> None:
        """Ends the run for a reason that does not pass."""
        self.failure = self.failure or error
        self.stop()

    async def rest(self, seconds: float) -> None:
        """Waits, until the worker stops."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            pass
