"""The worker for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from ._aclient import AsyncClient
from ._core import Span, pause_after
from ._errors import LapseError
from ._gatherer import Gatherer
from ._judgement import Judgement, judge
from ._run import Context, Held, OnError, Run, WorkerStats, log, settings_of
from .types import Delivery, Settlement

_FLUSH_TIME = 5.0  # for settling when the grace is over
_MAX_RECEIPTS = 1000
_PATIENCE = 0.5  # how old a reserve may be for its answer to be on the way


class AsyncWorker:
    """Receives the tasks of one topic: reserves ready tasks, hands each delivery to a handler,
    extends leases while handlers run, and settles the deliveries by their outcomes, many with one
    call.

    handler: a coroutine function of a delivery and its Context. A return acknowledges the task; for
      what an exception does see on_failure, RetryAfter and Kill.
    concurrency: handlers at once, 1 to 10,000.
    prefetch: deliveries that may wait for a handler, 0 to 1,000.
    lease: for how long other receivers do not get the tasks of a worker that has died, 1s to 1d. It
      bounds no handler: it is extended.
    wait: how long a call waits for tasks, 1s to 60s.
    grace: how long handlers may run on when the worker stops, 1ms to 1d.
    on_failure: "release" has a task delivered again after the topic's backoff, "bury" makes it dead.
    on_error: is told each failure: of a handler, with its delivery; of a lease that was lost; of calls
      to the server, without one. Default: the logger "lapse".
    """

    def __init__(
        self, client: AsyncClient, topic: str, handler: Callable[[Delivery, Context], Awaitable[object]], *, concurrency: int = 16,
        prefetch: int = 0, lease: Span = "30s", wait: Span = "30s", grace: Span = "10s",
        on_failure: Literal["release", "bury"] = "release", on_error: OnError | None = None,
    ) -> None:
        self._client, self.topic, self._handler = client, topic, handler
        self._s = settings_of(topic, concurrency, prefetch, lease, wait, grace, on_failure, on_error)
        self._totals = WorkerStats()
        self._cancels = True  # handlers can be cancelled
        self._open: set[Held] = set()
        self._queue: list[Held] = []
        self._running = 0
        self._run: Run | None = None

    @property
    def stats(self) -> WorkerStats:
        """What it has done so far, and what it has under way."""
        t = self._totals
        return WorkerStats(t.reserved, t.acked, t.released, t.buried, t.returned, t.lost, t.extended, len(self._queue), self._running, len(self._open))

    async def run(self) -> None:
        """Receives until stop is called, and returns once the open deliveries are settled: what has
        not begun is given back uncounted, and handlers get the grace. While the server is away it waits,
        without a bound. It raises what the server refuses the calls with, such as "unauthorized" or
        "handled", and "unsettled" if deliveries were left open. To cancel it is to stop it; to
        cancel it twice is to leave the deliveries open."""
        if self._run is not None:
            raise RuntimeError("the worker runs already")
        run = self._run = Run()
        self._acks = Gatherer[Held](1, _MAX_RECEIPTS, lambda batch: self._settle(run, batch, Judgement("ack")))
        self._others = Gatherer[Held](4, _MAX_RECEIPTS, lambda batch: self._settle_each(run, batch))
        work = asyncio.create_task(self._work(run))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            run.stop()
            await work
            raise
        finally:
            self._run = None
            run.over.set()

    async def stop(self) -> None:
        """Stops the worker, and returns when run does."""
        if (run := self._run) is not None:
            run.stop()
            await run.over.wait()

    async def _work(self, run: Run) -> None:
        keeper = asyncio.create_task(self._keep(run))
        try:
            await self._receive(run)
            await self._drain(run)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, self._acks.cancel(), self._others.cancel(), return_exceptions=True)
            left = len(self._open)
            self._open.clear()
            self._queue.clear()
        if run.failure is not None:
            raise run.failure
        if left:
            raise _failure("unsettled", f"{left} deliveries are left unsettled, {self._running} with handlers that still run")

    async def _receive(self, run: Run) -> None:
        """Reserves and begins deliveries."""
        failures, clock = 0, asyncio.get_running_loop().time
        while (n := await self._room(run)) > 0:
            asked, failure = clock(), None
            try:
                deliveries = await self._reserve(run, n)
                self._accept(run, deliveries)
                if deliveries or clock() - asked >= self._s.wait / 2:
                    failures = 0
                    continue
                # An answer at once without tasks: the server does not wait, since it shuts down.
            except LapseError as e:
                failure = e
                if not _heals(e):
                    run.fail(e)
                    return
                if failures == 0:
                    self._tell(e)
            await run.rest(self._pause(failures, failure))
            failures += 1

    async def _reserve(self, run: Run, n: int) -> list[Delivery]:
        """Makes one call. When the worker stops while the answer may be on its way, it waits for that:
        otherwise no receiver would have those tasks until their leases are over."""
        clock = asyncio.get_running_loop().time
        asked = clock()
        call = asyncio.create_task(self._client.reserve(self.topic, max=n, wait=_text(self._s.wait), lease=_text(self._s.lease)))
        stopping = asyncio.create_task(run.stopping.wait())
        try:
            await asyncio.wait((call, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                await asyncio.wait((call,), timeout=max(_PATIENCE - (clock() - asked), 0))
            return call.result() if call.done() else []
        finally:
            for task in (call, stopping):
                task.cancel()
            await asyncio.wait((call, stopping))

    async def _room(self, run: Run) -> int:
        """Waits for room for deliveries; 0: the worker stops. Besides those that handlers can take, as
        many may wait for the answer to their settlement."""
        most = self._s.concurrency + self._s.prefetch
        while not run.stopping.is_set():
            n = min(most - self._running - len(self._queue), 2 * most - len(self._open), _MAX_RECEIPTS)
            if n > 0:
                return n
            run.freed.clear()
            await run.freed.wait()
        return 0

    def _accept(self, run: Run, deliveries: list[Delivery]) -> None:
        until = asyncio.get_running_loop().time() + self._s.lease
        self._totals.reserved += len(deliveries)
        for delivery in deliveries:
            held = Held(delivery, until)
            self._open.add(held)
            self._queue.append(held)
        while self._running < self._s.concurrency and self._begin(run):
            self._running += 1

    def _begin(self, run: Run) -> bool:
        """Starts the handler of the delivery that has waited longest."""
        if run.stopping.is_set() or not self._queue:
            return False
        held = self._queue.pop(0)
        held.task = asyncio.create_task(self._handle(run, held))
        return True

    async def _handle(self, run: Run, held: Held) -> None:
        judgement = Judgement("ack")
        try:
            await self._handler(held.delivery.copy(), held.context)
        except GeneratorExit:
            raise  # the event loop is gone
        except BaseException as e:  # whatever ends a handler does not end the worker
            reason = held.context.reason
            if isinstance(e, asyncio.CancelledError):
                e = reason or RuntimeError("the handler was cancelled")
            judgement = judge(e, self._s.on_failure)
            if reason is not None and reason.code == "stopped" and judgement.verb == "release" and judgement.delay is None:
                judgement = Judgement("release", judgement.reason, 0)  # at once: the task is not at fault
            self._tell(e, held.delivery)
        held.judgement = judgement
        if not self._begin(run):
            self._running -= 1
        if held not in self._open:
            pass  # the run has ended without waiting for this handler any longer
        elif held.lost:
            self._open.discard(held)
            self._totals.lost += 1
        else:
            (self._acks if judgement.verb == "ack" else self._others).add(held)
        run.freed.set()

    async def _drain(self, run: Run) -> None:
        """Ends a run."""
        for held in self._queue:
            held.judgement = Judgement("give_back")
            self._others.add(held)
        self._queue.clear()
        if not await self._finished(run, self._s.grace):
            for held in self._open:
                self._end(held, _failure("stopped", "the worker has stopped"))
            await self._finished(run, _FLUSH_TIME)

    async def _finished(self, run: Run, timeout: float) -> bool:
        """Reports whether all handlers and settlements end in time."""
        try:
            async with asyncio.timeout(timeout):
                while self._running > 0:
                    run.freed.clear()
                    await run.freed.wait()
                await self._acks.idle()
                await self._others.idle()
        except TimeoutError:
            return False
        return True

    async def _settle_each(self, run: Run, batch: list[Held]) -> None:
        alike: dict[Judgement, list[Held]] = {}
        for held in batch:
            assert held.judgement is not None
            alike.setdefault(held.judgement, []).append(held)
        for judgement, held_alike in alike.items():
            await self._settle(run, held_alike, judgement)

    async def _settle(self, run: Run, batch: list[Held], j: Judgement) -> None:
        """Settles deliveries with equal judgements, and repeats the call until the server has
        answered: receipts stay valid over its restart."""
        doubtful, failures = False, 0  # doubtful: an earlier attempt may have been carried out
        while True:
            failure: LapseError | None = None
            receipts = [held.delivery["receipt"] for held in batch]
            try:
                if j.verb == "ack":
                    s = await self._client.ack(receipts)
                elif j.verb == "give_back":
                    s = await self._client.give_back(receipts)
                elif j.verb == "bury":
                    s = await self._client.bury(receipts, reason=j.reason)
                else:
                    s = await self._client.release(receipts, delay=None if j.delay is None else _text(j.delay), reason=j.reason)
                batch = self._settled(batch, j, s, doubtful)
                run.freed.set()
                if not batch:
                    return
            except LapseError as e:
                failure = e
                if not _heals(e):
                    run.fail(e)
                    return
                if failures == 0:
                    self._tell(e)
                doubtful = doubtful or e.outcome_unknown
            await asyncio.sleep(self._pause(failures, failure))
            failures += 1

    def _settled(self, batch: list[Held], j: Judgement, s: Settlement, doubtful: bool) -> list[Held]:
        """Removes deliveries, and returns those that the server could not judge yet. After a doubtful
        attempt, that attempt may be what has ended a delivery."""
        failed = {e["index"]: e["problem"]["type"] for e in s["errors"]}
        again, totals = [], self._totals
        for i, held in enumerate(batch):
            problem = failed.get(i)
            if problem is not None and not _is_over(problem):
                again.append(held)
                continue
            self._open.discard(held)
            if problem is not None and not doubtful:
                totals.lost += 1
                self._tell(_failure("lease_lost", "the lease was lost before the delivery was settled"), held.delivery)
            elif held.task is None:
                totals.returned += 1
            elif j.verb == "ack":
                totals.acked += 1
            elif j.verb == "bury":
                totals.buried += 1
            else:
                totals.released += 1
        return again

    async def _keep(self, run: Run) -> None:
        """Extends the leases of all open deliveries, each between a third and half of its time, many
        with one call."""
        pause = self._s.lease / 6
        while True:
            await asyncio.sleep(pause)
            pause = self._s.lease / 6
            held = self._expiring()
            for i in range(0, len(held), _MAX_RECEIPTS):
                if not await self._extend(run, held[i : i + _MAX_RECEIPTS]):
                    pause = self._s.lease / 30

    def _expiring(self) -> list[Held]:
        now, out = asyncio.get_running_loop().time(), []
        for held in list(self._open):
            left = held.until - now
            if held.lost or left > self._s.lease / 3 * 2:
                continue
            out.append(held)
            if left <= 0 and held.judgement is None and held.task is not None and not held.late:
                held.late = True  # the server decides whether the lease is still valid
                self._lose(held, "the lease ran out, since it could not be extended")
        return out

    async def _extend(self, run: Run, batch: list[Held]) -> bool:
        asked = asyncio.get_running_loop().time()
        left = min(held.until for held in batch) - asked
        try:
            client = self._client.with_options(timeout=max(left / 2, self._s.lease / 12))
            s = await client.extend([held.delivery["receipt"] for held in batch], lease=_text(self._s.lease))
        except LapseError as e:
            if not _heals(e):
                run.fail(e)
            return False
        failed = {e["index"]: e["problem"]["type"] for e in s["errors"]}
        for i, held in enumerate(batch):
            if i not in failed:
                held.until, held.late = asked + self._s.lease, False
                self._totals.extended += 1
            elif _is_over(failed[i]) and held.judgement is None and not held.lost:
                held.lost = True
                self._lose(held, "the lease was lost")
        run.freed.set()
        return True

    def _lose(self, held: Held, why: str) -> None:
        error = _failure("lease_lost", why)
        if held.task is not None:
            self._end(held, error)
        else:
            self._queue.remove(held)
            self._open.discard(held)
            self._totals.lost += 1
        self._tell(error, held.delivery)

    def _end(self, held: Held, reason: LapseError) -> None:
        """Tells a handler that it should end."""
        held.context._end(reason)
        if self._cancels and held.task is not None and held.judgement is None:
            held.task.cancel()

    def _pause(self, n: int, error: LapseError | None) -> float:
        o = self._client._o
        pause = pause_after(o, n, error)
        return o.max_wait if pause is None else pause

    def _tell(self, error: BaseException, delivery: Delivery | None = None) -> None:
        try:
            self._s.on_error(error, delivery)
        except BaseException:
            log.exception("on_error of the worker of %s has failed", self.topic)


def _failure(code: str, title: str) -> LapseError:
    return LapseError(code, title)


def _text(seconds: float) -> str:
    """Writes a span of time."""
    return f"{seconds * 1000:.3f}ms"


def _heals(e: LapseError) -> bool:
    """Reports whether a failure may pass by itself. It does not if the server, or a proxy in its place,
    refuses the request as such."""
    if e.code == "bad_answer":
        return False
    return e.status < 300 or e.status >= 500 or e.status in (408, 429)


def _is_over(problem: str) -> bool:
    return problem.endswith(("/stale_receipt", "/bad_receipt"))
