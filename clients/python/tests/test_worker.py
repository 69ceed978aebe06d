from __future__ import annotations

import asyncio
import contextlib
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lapse
from conftest import Proxy, Server, until


class Run:
    """A worker that runs in a thread, of either kind, with a handler that may block."""

    def __init__(self, kind: str, url: str, topic: str, handler: Callable[..., object], **options: Any) -> None:
        self.told: list[tuple[BaseException, Any]] = []
        self.failure: BaseException | None = None
        options.setdefault("on_error", lambda e, d: self.told.append((e, d)))
        if kind == "sync":
            self.worker: Any = lapse.Worker(lapse.Client(url, retries=1), topic, handler, **options)
            self._run = self.worker.run
            self.stop = self.worker.stop
        else:
            async def handle(delivery: Any, context: lapse.Context) -> None:
                # Beside the loop: handlers of these tests wait for others.
                if (error := await asyncio.to_thread(failure, delivery, context)) is not None:
                    raise error

            def failure(delivery: Any, context: lapse.Context) -> BaseException | None:
                try:
                    handler(delivery, context)
                except BaseException as e:  # no future can hold a StopIteration
                    return e
                return None

            async def main() -> None:
                self._loop = asyncio.get_running_loop()
                async with lapse.AsyncClient(url, retries=1) as client:
                    self.worker = lapse.AsyncWorker(client, topic, handle, **options)
                    self._made.set()
                    try:
                        await self.worker.run()
                    finally:
                        self._over = True

            self._over = False
            self._made = threading.Event()
            self._run = lambda: asyncio.run(main())
            self.stop = self._stop_async
        self._thread = threading.Thread(target=self._main)
        self._thread.start()
        if kind == "async":
            self._made.wait()

    def _stop_async(self) -> None:
        def ask() -> None:
            if not self._over:  # or the loop, which is about to end, would never run the task
                self._loop.create_task(self.worker.stop())

        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(ask)

    def _main(self) -> None:
        try:
            self._run()
        except BaseException as e:
            self.failure = e

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


@pytest.fixture(params=["sync", "async"])
def work(request: pytest.FixtureRequest, server: Server) -> Iterator[Callable[..., contextlib.AbstractContextManager[Run]]]:
    @contextlib.contextmanager
    def start(topic: str, handler: Callable[..., object], url: str = server.url, **options: Any) -> Iterator[Run]:
        run = Run(request.param, url, topic, handler, **options)
        try:
            yield run
        finally:
            until(lambda: (run.stop(), not run._thread.is_alive())[1]) if run._thread.is_alive() else None
            run.join()

    yield start


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(ch if ch.isalnum() else "-" for ch in request.node.name)


def gone(client: lapse.Client, id: str) -> bool:
    try:
        client.get(id)
    except lapse.LapseError as e:
        return e.code == "not_found"
    return False


def test_each_task_is_handled_once(work: Any, client: lapse.Client, topic: str) -> None:
    client.schedule_batch([{"topic": topic, "payload": i} for i in range(300)])
    seen: list[int] = []
    lock, now, most = threading.Lock(), 0, 0

    def handle(delivery: Any, context: lapse.Context) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        seen.append(delivery["payload"])
        with lock:
            now -= 1

    with work(topic, handle, concurrency=8, prefetch=20) as run:
        until(lambda: run.worker.stats.acked == 300)
    assert sorted(seen) == list(range(300)) and most <= 8
    assert run.worker.stats == lapse.WorkerStats(reserved=300, acked=300)
    assert list(client.all(topic=topic)) == []


def test_acknowledgements_go_together(work: Any, client: lapse.Client, proxy: Proxy, topic: str) -> None:
    client.schedule_batch([{"topic": topic} for _ in range(100)])
    with work(topic, lambda delivery, context: None, url=proxy.url, concurrency=100) as run:
        until(lambda: run.worker.stats.acked == 100)
    assert len([1 for _, path, _ in proxy.seen if path == "/v1/receipts/ack"]) < 60


def test_a_handler_that_fails(work: Any, client: lapse.Client, topic: str) -> None:
    client.set_topic(topic, {"retry": {"max_attempts": 3, "min_backoff": "1h", "max_backoff": "1h"}})
    client.schedule_batch([{"id": f"{topic}-{how}", "topic": topic, "payload": how} for how in ("plain", "retry", "bury")])

    def handle(delivery: Any, context: lapse.Context) -> None:
        if delivery["payload"] == "retry":
            raise lapse.RetryAfter("1ms", "at once")
        if delivery["payload"] == "bury":
            raise lapse.Kill("no such order")
        raise OSError("half \ud800 of a pair")

    with work(topic, handle) as run:
        until(lambda: run.worker.stats.released >= 4 and run.worker.stats.buried == 1)
    got = {how: client.get(f"{topic}-{how}") for how in ("plain", "retry", "bury")}
    assert (got["plain"]["last_error"], got["plain"]["state"]) == ("half ? of a pair", "pending")
    assert (got["retry"]["attempt"], got["retry"]["state"], got["retry"]["last_error"]) == (3, "dead", "at once")
    assert (got["bury"]["reason"], got["bury"]["last_error"]) == ("buried", "no such order")
    assert any(isinstance(e, lapse.Kill) and d["id"] == f"{topic}-bury" for e, d in run.told)


def test_no_handler_ends_the_worker(work: Any, client: lapse.Client, topic: str) -> None:
    class Odd(BaseException):
        def __str__(self) -> str:
            raise Odd

    class Broken(lapse.RetryAfter):
        delay = float("nan")

        def __init__(self) -> None:
            Exception.__init__(self, "broken")

    ways: list[BaseException] = [StopIteration(7), SystemExit(3), KeyboardInterrupt(), Odd(), asyncio.CancelledError(), Broken()]
    client.set_topic(topic, {"retry": {"max_attempts": 5, "min_backoff": "1h", "max_backoff": "1h"}})
    client.schedule_batch([{"id": f"{topic}-{i}", "topic": topic, "payload": i} for i in range(len(ways) + 1)])

    def handle(delivery: Any, context: lapse.Context) -> None:
        if (i := delivery["payload"]) < len(ways):
            raise ways[i]

    def on_error(error: BaseException, delivery: Any) -> None:
        raise SystemExit

    with work(topic, handle, concurrency=1, on_error=on_error) as run:
        until(lambda: run.worker.stats.released == len(ways) and run.worker.stats.acked == 1)
    for i in range(len(ways)):
        assert client.get(f"{topic}-{i}")["attempt"] == 1
    assert "StopIteration" in client.get(f"{topic}-0")["last_error"]
    assert client.get(f"{topic}-3")["last_error"] == "Odd"


def test_on_failure_bury(work: Any, client: lapse.Client, topic: str) -> None:
    client.schedule(topic, id=topic)

    def handle(delivery: Any, context: lapse.Context) -> None:
        raise ValueError

    def on_error(error: BaseException, delivery: Any) -> None:
        raise RuntimeError("and a hook that fails ends nothing")

    with work(topic, handle, on_failure="bury", on_error=on_error) as run:
        until(lambda: run.worker.stats.buried == 1)
    assert (client.get(topic)["state"], client.get(topic)["last_error"]) == ("dead", "ValueError")


def test_a_lease_is_extended_while_a_handler_runs(work: Any, client: lapse.Client, topic: str) -> None:
    client.schedule(topic, id=topic)
    attempts = []

    def handle(delivery: Any, context: lapse.Context) -> None:
        attempts.append(delivery["attempt"])
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 2.2 and run.worker.stats.extended >= 4)  # more than two leases

    with work(topic, handle, lease="1s", concurrency=2) as run:
        until(lambda: gone(client, topic))
    assert attempts == [1] and run.worker.stats.lost == 0


def test_a_handler_learns_that_its_lease_is_lost(work: Any, client: lapse.Client, topic: str) -> None:
    client.schedule(topic, id=topic)
    reasons: list[Any] = []

    def handle(delivery: Any, context: lapse.Context) -> None:
        client.release(delivery["receipt"], delay="1h")  # as if another had it
        assert context.ended.wait(30)
        reasons.append(context.reason)

    with work(topic, handle, lease="1s") as run:
        until(lambda: reasons and run.worker.stats.lost == 1)
    assert reasons[0].code == "lease_lost"


def test_a_stop_waits_for_handlers_and_gives_the_rest_back(work: Any, client: lapse.Client, topic: str) -> None:
    client.schedule_batch([{"id": f"{topic}-{i}", "topic": topic} for i in range(3)])
    began, go = threading.Event(), threading.Event()

    def handle(delivery: Any, context: lapse.Context) -> None:
        began.set()
        go.wait(30)

    with work(topic, handle, concurrency=1, prefetch=2) as run:
        assert began.wait(30)
        until(lambda: run.worker.stats.waiting == 2)
        run.stop()
        until(lambda: run.worker.stats.returned == 2)
        assert client.get(f"{topic}-2")["state"] == "ready" and run.worker.stats.running == 1
        go.set()
        run.join()
    assert gone(client, f"{topic}-0")
    assert (run.worker.stats.acked, run.worker.stats.unsettled) == (1, 0)


def test_a_stop_spends_no_attempt_of_what_has_not_begun(work: Any, client: lapse.Client, topic: str) -> None:
    client.set_topic(topic, {"retry": {"max_attempts": 1}})
    client.schedule_batch([{"id": f"{topic}-{i}", "topic": topic} for i in range(24)])
    go = threading.Event()

    def handle(delivery: Any, context: lapse.Context) -> None:
        go.wait(30)

    with work(topic, handle, concurrency=4, prefetch=8) as run:
        until(lambda: run.worker.stats.running == 4 and run.worker.stats.waiting == 8)
        run.stop()
        until(lambda: run.worker.stats.returned == 8)
        go.set()
        run.join()
    assert (run.worker.stats.acked, run.worker.stats.released) == (4, 0)
    rest = client.reserve(topic, max=100)
    assert [d["attempt"] for d in rest] == [1] * 20
    assert not list(client.all_dead(topic))
    assert client.give_back([d["receipt"] for d in rest])["settled"] == 20


def test_a_stop_ends_handlers_after_the_grace(work: Any, client: lapse.Client, topic: str) -> None:
    client.schedule(topic, id=topic)
    began = threading.Event()

    def handle(delivery: Any, context: lapse.Context) -> None:
        began.set()
        assert context.ended.wait(30)
        raise RuntimeError("not done")

    with work(topic, handle, grace="50ms") as run:
        assert began.wait(30)
        run.stop()
        run.join()
    assert client.get(topic)["state"] == "ready"


def test_a_worker_outlives_a_crash_of_the_server(work: Any, tmp_path: pathlib.Path, topic: str) -> None:
    own = Server(tmp_path)
    client = lapse.Client(own.url)
    began, go = threading.Event(), threading.Event()

    def handle(delivery: Any, context: lapse.Context) -> None:
        began.set()
        assert go.wait(30)

    try:
        client.schedule(topic)
        with work(topic, handle, url=own.url, wait="1s") as run:
            assert began.wait(30)
            client.set_topic(topic, {"paused": True})  # or the task may be handed out again before the ack
            own.crash()
            go.set()
            until(lambda: run.worker.stats.acked == 1)
            client.set_topic(topic, {})
            client.schedule(topic)
            until(lambda: run.worker.stats.acked == 2)
        assert run.worker.stats.reserved == 2
    finally:
        client.close()
        own.stop()


def test_a_lost_answer_to_an_ack_is_no_lost_lease(work: Any, client: lapse.Client, proxy: Proxy, topic: str) -> None:
    client.schedule(topic)
    lost: list[str] = []

    def fate(path: str, nth: int) -> str:
        if path.endswith("/ack") and len(lost) < 5:
            lost.append(path)
            return "lose"
        return "pass"

    proxy.fate = fate
    with work(topic, lambda delivery, context: None, url=proxy.url) as run:
        until(lambda: run.worker.stats.acked == 1)
    assert (run.worker.stats.lost, run.worker.stats.unsettled) == (0, 0)


def test_a_lost_answer_to_a_release_is_no_lost_lease(work: Any, client: lapse.Client, proxy: Proxy, topic: str) -> None:
    client.schedule(topic)
    releases: list[str] = []

    def fate(path: str, nth: int) -> str:
        if path.endswith("/release"):
            releases.append(path)
            return "lose" if len(releases) == 1 else "pass"
        return "pass"

    def handle(delivery: Any, context: lapse.Context) -> None:
        raise lapse.RetryAfter("1h", "later")

    proxy.fate = fate
    with work(topic, handle, url=proxy.url) as run:
        until(lambda: run.worker.stats.released + run.worker.stats.lost == 1)
    assert len(releases) >= 2 and (run.worker.stats.released, run.worker.stats.lost) == (1, 0)


def test_a_worker_that_is_refused_says_why(work: Any, client: lapse.Client, topic: str) -> None:
    client.set_topic(topic, {"delivery": {"kind": "webhook", "url": "http://127.0.0.1:9/"}})
    with pytest.raises(lapse.LapseError) as e:
        with work(topic, lambda delivery, context: None) as run:
            run.join()
    assert e.value.code == "handled"
    for wrong in ({"concurrency": 0}, {"lease": "1 hour"}, {"on_failure": "drop"}, {"wait": "61s"}):
        with pytest.raises(ValueError):
            lapse.Worker(client, topic, lambda delivery, context: None, **wrong)


def test_a_coroutine_is_cancelled_when_its_lease_is_lost(client: lapse.Client, server: Server, topic: str) -> None:
    client.schedule(topic)

    async def main() -> None:
        ended = asyncio.Event()

        async def handle(delivery: Any, context: lapse.Context) -> None:
            await asyncio.to_thread(client.release, delivery["receipt"], delay="1h")
            try:
                await asyncio.sleep(60)
            finally:
                assert context.reason is not None and context.reason.code == "lease_lost"
                ended.set()

        async with lapse.AsyncClient(server.url) as c:
            worker = lapse.AsyncWorker(c, topic, handle, lease="1s", on_error=lambda e, d: None)
            run = asyncio.create_task(worker.run())
            await asyncio.wait_for(ended.wait(), 30)
            with pytest.raises(RuntimeError):
                await worker.run()
            run.cancel()  # stops it in order
            with pytest.raises(asyncio.CancelledError):
                await run
            assert (worker.stats.lost, worker.stats.unsettled) == (1, 0)

    asyncio.run(main())


PROGRAM = """
import asyncio, contextlib, signal, sys
sys.path.insert(0, {path!r})
import lapse
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
def show(delivery, context):
    print(delivery["payload"], flush=True)
async def show_async(delivery, context):
    show(delivery, context)
async def main():
    async with lapse.AsyncClient({url!r}) as client:
        await lapse.AsyncWorker(client, {topic!r}, show_async).run()
if {how!r} == "async":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
else:
    worker = lapse.Worker(lapse.Client({url!r}), {topic!r}, show)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
print("stopped", flush=True)
"""


@pytest.mark.parametrize(("how", "by"), [("sync", signal.SIGTERM), ("sync", signal.SIGINT), ("async", signal.SIGINT)])
def test_a_program_stops_on_a_signal(client: lapse.Client, server: Server, topic: str, how: str, by: signal.Signals) -> None:
    client.schedule(topic, payload="done")
    program = PROGRAM.format(path=str(pathlib.Path(lapse.__file__).parent.parent), url=server.url, topic=topic, how=how)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        try:
            assert p.stdout is not None and p.stdout.readline() == "done\n"
            p.send_signal(by)
            out, err = p.communicate(timeout=30)
        finally:
            p.kill()
    assert (out, err, p.returncode) == ("stopped\n", "", 0)
    until(lambda: not list(client.all(topic=topic)))
