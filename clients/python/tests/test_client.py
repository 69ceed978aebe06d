from __future__ import annotations

import asyncio
import datetime
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lapse
from both import Blocking
from conftest import TOKEN, Proxy, Server, free_port, until

OVERLOADED = (429, {"Content-Type": "application/problem+json", "Retry-After": "1"}, b'{"type":"/problems/overloaded","title":"Overloaded","status":429}')


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients of both kinds."""
    made: list[Any] = []
    if request.param == "sync":
        def make(*args: Any, **kwargs: Any) -> Any:
            made.append(lapse.Client(*args, **kwargs))
            return made[-1]
        yield make
        for c in made:
            c.close()
        return
    with asyncio.Runner() as runner:
        def make_async(*args: Any, **kwargs: Any) -> Any:
            made.append(Blocking(lapse.AsyncClient(*args, **kwargs), runner.get_loop()))
            return made[-1]
        yield make_async
        for c in made:
            c.close()


@pytest.fixture
def c(connect: Callable[..., Any], server: Server) -> Any:
    return connect(server.url)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic or an id of this test alone."""
    return "".join(ch if ch.isalnum() else "-" for ch in request.node.name)


def fails(code: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> lapse.LapseError:
    with pytest.raises(lapse.LapseError) as e:
        call(*args, **kwargs)
    assert e.value.code == code, e.value
    return e.value


def test_a_task_from_its_request_to_its_end(c: Any, name: str) -> None:
    request = dict(id=name, delay="30m", payload={"order": 42}, headers={"tenant": "eu"}, group="g")
    made = c.schedule(name, **request)
    assert made["created"] and made["state"] == "pending" and made["payload"] == {"order": 42}
    assert not c.schedule(name, **request)["created"]
    fails("id_taken", c.schedule, name, id=name, delay=datetime.timedelta(minutes=31))
    at = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=5000) + datetime.timedelta(hours=1)
    assert datetime.datetime.fromisoformat(c.reschedule(name, due_at=at)["due_at"]) == at
    assert c.reschedule(name, payload=None)["revision"] == 3
    assert c.get(name)["payload"] is None
    assert datetime.datetime.fromisoformat(c.reschedule(name, datetime.timedelta(days=1))["due_at"]) > at
    assert c.hold(name)["state"] == "held"
    assert c.resume(name)["state"] == "pending"
    assert not c.replace(name, id=name, due_at=at)["created"]
    assert "payload" not in c.get(name)
    c.fire(name)
    assert c.get(name)["state"] == "ready"
    assert c.cancel(name) is None
    e = fails("not_found", c.get, name)
    assert (e.type, e.status, e.retryable, e.outcome_unknown) == ("/problems/not_found", 404, False, False) and e.request_id


def test_a_wrong_request_names_its_fields(c: Any, server: Server) -> None:
    e = fails("invalid", c.schedule, "t", delay="soon")
    assert e.errors[0]["field"] == "delay" and "delay" in str(e)
    for wrong in (lambda: c.get(""), lambda: c.list(topic="t", group=""), lambda: c.events(kinds=[""]),
                  lambda: c.schedule("t", due_at=datetime.datetime.now()), lambda: lapse.Client("ftp://x"),
                  lambda: lapse.Client("http://a@b"), lambda: lapse.Client(server.url, retries=-1), lambda: c.schedule("t", payload=float("nan")),
                  lambda: c.schedule("t", payload="half \ud800 of a pair"), lambda: c.schedule("t", headers={"k": "\udfff"})):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(TypeError):
        c.schedule("t", delay=30)  # of which unit?


def test_batches_lists_and_groups(c: Any, name: str) -> None:
    now = datetime.datetime.now(datetime.timezone.utc)
    answer = c.schedule_batch([{"topic": name, "due_at": now + datetime.timedelta(hours=1), "group": name},
                               {"id": name, "topic": name, "delay": datetime.timedelta(hours=2), "group": name}, {"topic": name, "delay": "-1s"}])
    assert answer["accepted"] == 2 and answer["ids"][0][14] == "7" and answer["errors"][0]["problem"]["status"] == 422
    ids = [answer["ids"][0], name]
    assert [t["id"] for t in c.all(topic=name, limit=1)] == ids
    assert [t["id"] for t in c.all(topic=name, due_from=now + datetime.timedelta(minutes=90))] == [name]
    assert [t["id"] for t in c.group(name, limit=1)] == ids
    assert c.list(topic=name, limit=1, details=False)["next_cursor"]
    assert c.cancel_group(name) == {"cancelled": 2, "delivering": []}


def test_a_task_with_a_delivery_of_its_own(c: Any, name: str) -> None:
    c.set_topic(name, {"task_delivery": True, "concurrency_per_group": 1, "on_dead": {"topic": name + "-dead", "delay": datetime.timedelta(hours=1)}})
    retry = {"max_attempts": 5, "max_age": datetime.timedelta(hours=2)}
    made = c.schedule(name, delay="1h", id=name, delivery={"retry": retry})
    assert made["delivery"] == {"retry": {"max_attempts": 5, "max_age": "2h"}}
    assert "delivery" not in c.reschedule(name, delivery={})
    assert c.replace(name, id=name, delay="1h", delivery={"retry": retry})["delivery"] == made["delivery"]
    fails("invalid", c.schedule, name, delivery={"url": "https://shop.example"})


def test_topics(c: Any, name: str) -> None:
    set_ = c.set_topic(name, {"lease": datetime.timedelta(minutes=1), "retry": {"max_attempts": 3, "min_backoff": datetime.timedelta(seconds=2)}})
    assert (set_["lease"], set_["retry"]["max_attempts"], set_["retry"]["min_backoff"]) == ("1m", 3, "2s")
    fails("precondition_failed", c.change_topic, name, {"lease": "2m"}, revision=set_["revision"] + 7)
    changed = c.change_topic(name, {"lease": "2m", "retry": None}, revision=set_["revision"])
    assert (changed["lease"], changed["retry"]["max_attempts"]) == ("2m", 1_000_000)
    c.pause_topic(name)
    assert c.topic(name, scope="node")["paused"]
    c.resume_topic(name)
    c.schedule(name, delay="1h")
    assert name in [t["name"] for t in c.topics(limit=1)]
    assert [t["name"] for t in c.list_topics(search=name)["topics"]] == [name]
    fails("topic_in_use", c.delete_topic, name)
    assert c.purge(name) == {"cancelled": 1, "delivering": 0}
    c.delete_topic(name)
    fails("topic_not_found", c.topic, name)
    c.schedule(name, id=name, delay="1h")
    c.kill_topic(name)
    assert [(t["id"], t["reason"]) for t in c.list_dead(name)["tasks"]] == [(name, "deleted")]
    assert c.dead_reasons(name)["dead"] == 1 <= c.dead_reasons(reason="deleted")["dead"]
    c.delete_dead(name, [name])


def test_receipts_the_dead_and_actions(c: Any, name: str) -> None:
    c.schedule_batch([{"id": f"{name}-{i}", "topic": name} for i in range(3)])
    got = c.reserve(name, max=3, wait="10s", lease=datetime.timedelta(minutes=1))
    assert [(d["id"], d["attempt"]) for d in got] == [(f"{name}-{i}", 1) for i in range(3)]
    assert c.extend(got[0]["receipt"], lease="5m")["lease_until"] > got[0]["lease_until"]
    assert c.ack(got[0]["receipt"])["settled"] == 1
    assert c.ack([got[0]["receipt"] + "x"])["errors"][0]["problem"]["type"] == "/problems/bad_receipt"
    c.release([got[1]["receipt"]], delay="1h", reason="no room")
    assert c.get(f"{name}-1")["last_error"] == "no room"
    c.bury(got[2]["receipt"], reason="no such order")
    assert [(t["id"], t["reason"], t["last_error"]) for t in c.all_dead(name)] == [(f"{name}-2", "buried", "no such order")]
    assert c.requeue_dead(name, ids=[f"{name}-2", "none"], delay="1h") == {"requeued": 1, "unknown": ["none"]}
    c.delete_all_dead(name)
    assert c.act("cancel", filter={"topic": name}, dry_run=True)["matched"] == 2
    assert sum(a["done"] for a in c.act_all("move", filter={"topic": name}, shift=datetime.timedelta(hours=1))) == 2


def test_a_redrive_stops_by_itself(c: Any, name: str) -> None:
    c.schedule_batch([{"id": f"{name}-{i}", "topic": name} for i in range(3)])
    for d in c.reserve(name, max=3, wait="10s"):
        c.bury(d["receipt"], reason="no such order")
    first, last = c.redrive(filter={"topic": name}, first=2, within=0.3)  # nobody receives them
    assert (first.requeued, first.stopped, last.requeued, last.over) == (2, "", 2, False)
    assert last.stopped == "none of the first 2 was delivered within 0.3 s"
    assert [(r.topic, r.requeued, r.stopped, r.over) for r in c.redrive(filter={"topic": name}, first=0)] == [(name, 1, "", True)]
    assert [*c.all_dead(name)] == []
    for d in c.reserve(name, max=3, wait="10s"):
        c.bury(d["receipt"], reason="no such order")
    seen = []
    for r in c.redrive(filter={"topic": name}, first=3, within=60):
        seen.append(r)
        for d in c.reserve(name, max=3, wait="10s") if len(seen) == 1 else ():
            c.bury(d["receipt"], reason="still none")
    assert seen[-1].stopped == "the first 3 failed again: still none"


def test_an_act_is_undone(c: Any, name: str) -> None:
    c.set_topic(name, {"lease": "1m"})
    c.pause_topic(name)
    (act,) = (e for e in c.audit(topic=name)["entries"] if e["verb"] == "pause")
    assert act["undo"] == "resume"
    assert c.undo(act["id"]) == {"id": act["id"], "verb": "resume", "topic": name}
    assert not c.topic(name)["paused"]
    fails("precondition_failed", c.undo, act["id"])
    fails("act_not_found", c.undo, "none")


def test_figures(c: Any, name: str) -> None:
    assert c.ready()["ready"]
    assert c.alive()["status"] == "alive"
    (node,) = c.nodes()
    assert c.node(node["name"])["self"]
    fails("nobody_to_take_over", c.drain_node, node["name"])
    assert c.stats(topics=False)["node"] == node["name"]
    c.schedule(name, id=name, delay="1h")
    assert [t["task"]["id"] for part in c.searches(name) for t in part["tasks"]] == [name]
    assert c.diagnosis()["fleet"] == "One node, and it is live."
    assert c.history(minutes=1, scope="node")["step"] == "1m"
    assert len(c.forecast(window="1h", step="30m")["counts"]) == 2


def test_events(c: Any, name: str) -> None:
    with c.events(topics=[name]) as events:
        c.schedule(name, id=name)
        c.schedule("unseen")
        c.ack(c.reserve(name, wait="10s")[0]["receipt"])
        seen = [next(events) for _ in range(3)]
    assert [e["kind"] for e in seen] == ["scheduled", "started", "delivered"]
    assert {e["id"] for e in seen} == {name} and seen[0]["number"] < seen[2]["number"]


def test_a_token(connect: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    s = Server(tmp_path, "--token-file", str(tmp_path / "tokens.yaml"))
    try:
        assert connect(s.url, TOKEN).schedule("t")["topic"] == "t"
        fails("unauthorized", connect(s.url, "lapse_none").schedule, "t")
        fails("forbidden", connect(s.url, TOKEN).nodes)
    finally:
        s.stop()


def test_a_lost_answer_is_repeated_with_the_id(connect: Callable[..., Any], proxy: Proxy, c: Any, name: str) -> None:
    proxy.fate = lambda path, nth: "lose" if nth < 3 else "pass"
    task = connect(proxy.url).schedule(name, delay="1h")
    assert len(proxy.seen) == 3 and len({body for _, _, body in proxy.seen}) == 1
    assert not task["created"] and [t["id"] for t in c.all(topic=name)] == [task["id"]]


def test_the_application_is_told_of_repetitions(connect: Callable[..., Any], proxy: Proxy) -> None:
    proxy.fate = lambda path, nth: "lose" if nth < 3 else "pass"
    told: list[lapse.Repetition] = []
    connect(proxy.url, on_repeat=told.append).schedule("told", delay="1h")
    assert [(r.method, r.path, r.failed, r.error.code) for r in told] == [("POST", "/v1/tasks", n, "outcome_unknown") for n in (1, 2)]
    assert all(r.pause > 0 for r in told)


def test_what_may_happen_twice_is_not_repeated(connect: Callable[..., Any], proxy: Proxy) -> None:
    proxy.fate = lambda path, nth: "lose"
    far = connect(proxy.url)
    for call in (lambda: far.fire("none"), lambda: far.reserve("t")):
        e = fails("outcome_unknown", call)
        assert e.outcome_unknown and not e.retryable
    assert len(proxy.seen) == 2


def test_an_open_outcome_names_the_id(connect: Callable[..., Any], proxy: Proxy) -> None:
    proxy.fate = lambda path, nth: "lose"
    far = connect(proxy.url, retries=1)
    e = fails("outcome_unknown", far.schedule, "t")
    assert e.retryable and e.id is not None and e.id.encode() in proxy.seen[0][2]
    assert len(fails("outcome_unknown", far.schedule_batch, [{"topic": "t"}]).ids or []) == 1
    assert len(proxy.seen) == 4
    alone = far.with_options(retries=0)
    assert not fails("outcome_unknown", alone.schedule, "t").retryable
    assert proxy.seen[4][2] == b'{"topic":"t"}' and len(proxy.seen) == 5


def test_retry_after(connect: Callable[..., Any], proxy: Proxy) -> None:
    proxy.fate = lambda path, nth: OVERLOADED if nth == 1 else "pass"
    connect(proxy.url).schedule("t", delay="1h")
    tried = len(proxy.seen)  # a busy server may have asked for another one
    assert tried > 1 and len(set(proxy.seen)) == 1
    proxy.fate = lambda path, nth: OVERLOADED
    e = fails("overloaded", connect(proxy.url, max_wait=0.5).fire, "x")
    assert e.retry_after == 1 and e.retryable and len(proxy.seen) == tried + 1


def test_a_call_that_hangs(connect: Callable[..., Any], proxy: Proxy) -> None:
    proxy.fate = lambda path, nth: "hang"
    far = connect(proxy.url, retries=0, timeout=0.05)
    assert fails("unreachable", far.get, "x").detail == "no answer in time"
    fails("outcome_unknown", far.cancel, "x")


def test_answers_of_others(connect: Callable[..., Any], proxy: Proxy) -> None:
    far = connect(proxy.url, max_answer=2000)
    for fate in ((200, {}, b'"' + b"x" * 5000 + b'"'), (200, {}, b"<html>"), (302, {"Location": "/"}, b"")):
        proxy.fate = lambda path, nth: fate
        assert not fails("bad_answer", far.get, "x").retryable
    proxy.fate = lambda path, nth: (200, {"Content-Type": "text/html"}, b"<html>")
    fails("bad_answer", far.events)
    assert len(proxy.seen) == 4
    proxy.fate = lambda path, nth: (502, {}, b"bad gateway")
    e = fails("outcome_unknown", far.fire, "x")
    assert (e.type, e.status) == ("about:blank", 502)


def test_no_server(connect: Callable[..., Any]) -> None:
    assert fails("unreachable", connect(f"http://127.0.0.1:{free_port()}", retries=1, max_wait=0).schedule, "t").retryable


def test_connections_are_kept(connect: Callable[..., Any], proxy: Proxy) -> None:
    c = connect(proxy.url)
    c.schedule("t", id="kept", delay="1h")
    for _ in range(3):
        c.get("kept")
        fails("not_found", c.get, "none")
    c.cancel("kept")
    list(c.all(topic="t", limit=1))
    assert proxy.connections == 1 and len(proxy.seen) >= 9
    assert len({path for _, path, _ in proxy.seen if path.startswith("/v1/tasks?")}) == len(proxy.seen) - 8


def test_connections_survive_a_restart(connect: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    s = Server(tmp_path)
    try:
        c = connect(s.url, retries=0)
        for _ in range(3):
            c.schedule("t", delay="1h")
        s.crash()
        assert len(list(c.all(topic="t"))) == 3  # not over a connection that has ended
    finally:
        s.stop()


def test_threads_share_a_client(client: lapse.Client, name: str) -> None:
    threads = [threading.Thread(target=lambda: [client.schedule(name, delay="1h") for _ in range(20)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(client.all(topic=name, limit=50))) == 160


def test_a_client_after_a_fork(client: lapse.Client) -> None:
    client.schedule("fork", delay="1h")
    pid = os.fork()
    if pid == 0:
        try:
            client.schedule("fork", delay="1h")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(list(client.all(topic="fork"))) == 2


def test_an_async_call_is_cancelled(proxy: Proxy) -> None:
    proxy.fate = lambda path, nth: "hang"

    async def main() -> None:
        async with lapse.AsyncClient(proxy.url) as c:
            call = asyncio.create_task(c.get("x"))
            while not proxy.seen:
                await asyncio.sleep(0.001)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(main())


def test_ids() -> None:
    ids = [lapse.new_id() for _ in range(100)]
    assert len(set(ids)) == 100 and all(i[14] == "7" and i[19] in "89ab" and len(i) == 36 for i in ids)
    assert ids[0][:13] <= ids[99][:13]
    until(lambda: lapse.new_id()[:13] > ids[99][:13])
