"""The client that blocks. tools/generate.py makes the one for asyncio of this file."""

from __future__ import annotations

import dataclasses
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any, Dict, List, cast

from . import types as t
from ._core import (
    MISSING, WHOLE_TOPIC, Answer, Attempts, Call, OnRepeat, Options, Redriven, Span, Time, encode, given, instant, new_id, options, path, plain,
    receipts_of, seconds, span, task, with_ids,
)
from ._errors import LapseError
from ._http import Events, Transport


class Client:
    """Calls one server. Every call fails with a LapseError.

    A call is repeated where that is safe: after an answer that says that nothing has happened, and
    after a lost answer if a second request changes nothing more. So tasks without an id get one
    before they are sent. Threads may share a client.

    url: of the server, such as "http://127.0.0.1:7480". It may have a path, for a proxy.
    token: sent as a bearer token with every request.
    timeout: seconds that each attempt of a call may take. Reserve adds its wait, and calls that may
      touch all tasks of a topic add two minutes.
    retries: how often a call is repeated where that is safe. 0: never, and then no ids are made.
    max_wait: the longest pause before a repetition in seconds. A server that asks for more gets none.
    max_answer: the longest answer in bytes.
    context: of TLS. Default: the system's certificates.
    on_repeat: is told, with a Repetition, of each attempt of a call that has failed and is followed by
      another one, before the pause. What it raises ends the call.
    """

    def __init__(
        self, url: str, token: str | None = None, *, timeout: float = 10, retries: int = 3, max_wait: float = 10,
        max_answer: int = 64 << 20, context: ssl.SSLContext | None = None, on_repeat: OnRepeat | None = None,
    ) -> None:
        self._o: Options = options(url, token, timeout, retries, max_wait, max_answer, context, on_repeat)
        self._transport = Transport()

    def with_options(self, *, timeout: float | None = None, retries: int | None = None) -> Client:
        """Returns a client with other options that shares the connections of this one."""
        other = object.__new__(type(self))
        other._transport = self._transport
        other._o = dataclasses.replace(self._o, **given(timeout=timeout, retries=retries))
        return other

    def close(self) -> None:
        """Ends the connections that are idle. The client may be used again."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Tasks.

    def schedule(
        self, topic: str, *, delay: Span | None = None, due_at: Time | None = None, payload: Any = MISSING,
        id: str | None = None, headers: Mapping[str, str] | None = None, max_lateness: Span | None = None,
        group: str | None = None, delivery: Mapping[str, Any] | None = None,
    ) -> t.ScheduledTask:
        """Has a task delivered when it is due. It is recorded once this returns. The payload is any
        JSON. delivery is what is other for this task than for its topic, such as {"url": ...}.
        "created" of the answer is False if the same task was there before."""
        if id is None and self._o.retries > 0:
            id = new_id()
        body = task(given(
            id=id, topic=topic, delay=delay, due_at=due_at, headers=headers, max_lateness=max_lateness, group=group, delivery=delivery,
        ), payload)
        try:
            return self._put(Call("POST", "/v1/tasks", "again" if id is None else "same", body=encode(body)))
        except LapseError as e:
            raise with_ids(e, id=id)

    def schedule_batch(self, tasks: Iterable[t.NewTask]) -> t.BatchAnswer:
        """Schedules up to 10,000 tasks with one request. Each is taken or refused by itself: see
        "errors" of the answer."""
        body = [plain(one) for one in tasks]
        if self._o.retries > 0:
            for one in body:
                one.setdefault("id", new_id())
        safe = all("id" in one for one in body)
        call = Call("POST", "/v1/tasks/batch", "same" if safe else "again", body=encode(body))
        try:
            return cast(t.BatchAnswer, self._json(call))
        except LapseError as e:
            raise with_ids(e, ids=[one["id"] for one in body] if safe else None)

    def put(
        self, id: str, topic: str, *, delay: Span | None = None, due_at: Time | None = None, payload: Any = MISSING,
        headers: Mapping[str, str] | None = None, max_lateness: Span | None = None, group: str | None = None,
        delivery: Mapping[str, Any] | None = None,
    ) -> t.ScheduledTask:
        """Creates a task, or replaces a pending or ready one as a whole."""
        body = task(given(
            topic=topic, delay=delay, due_at=due_at, headers=headers, max_lateness=max_lateness, group=group, delivery=delivery,
        ), payload)
        return self._put(Call("PUT", path("/v1/tasks/", id), "same", body=encode(body)))

    def get(self, id: str) -> t.Task:
        """Returns a task."""
        return cast(t.Task, self._json(Call("GET", path("/v1/tasks/", id), "reads")))

    def patch(
        self, id: str, *, delay: Span | None = None, due_at: Time | None = None, payload: Any = MISSING,
        delivery: Mapping[str, Any] | None = None,
    ) -> t.Task:
        """Moves the deadline of a task, or gives it another payload or delivery, in one step. An empty
        delivery takes away what the task has of its own."""
        body = encode(task(given(delay=delay, due_at=due_at, delivery=delivery), payload))
        return cast(t.Task, self._json(Call("PATCH", path("/v1/tasks/", id), "same", body=body)))

    def reschedule(self, id: str, when: Any) -> t.Task:
        """Moves the deadline of a task: by a span from now, or to a datetime."""
        body = {"due_at": instant("when", when)} if hasattr(when, "tzinfo") else {"delay": span("when", when)}
        return cast(t.Task, self._json(Call("PATCH", path("/v1/tasks/", id), "same", body=encode(body))))

    def cancel(self, id: str) -> None:
        """Makes sure that a task is not delivered any more. A dead one is deleted."""
        self._call(Call("DELETE", path("/v1/tasks/", id), "same"))

    def fire(self, id: str) -> t.Task:
        """Makes a pending task due now."""
        return cast(t.Task, self._json(Call("POST", path("/v1/tasks/", id, "/fire"), "again")))

    def hold(self, id: str) -> t.Task:
        """Holds the countdown of a task: it keeps the time that is left until it is resumed."""
        return cast(t.Task, self._json(Call("POST", path("/v1/tasks/", id, "/hold"), "same")))

    def resume(self, id: str) -> t.Task:
        """Lets a held countdown go on."""
        return cast(t.Task, self._json(Call("POST", path("/v1/tasks/", id, "/resume"), "same")))

    def list(self, **query: Any) -> Iterator[t.Task]:
        """Yields all tasks that a query selects, soonest first, page by page. The query has the
        names of GET /v1/tasks: topic, group, state, id_prefix, error, due_from, due_to, reason,
        died_from, died_to, details, limit (of a page)."""
        return self._pages("/v1/tasks", "tasks", query)

    def list_page(self, **query: Any) -> t.TaskPage:
        """Returns one page of list. It may be empty although there are more: then it has a next_cursor."""
        return cast(t.TaskPage, self._json(Call("GET", "/v1/tasks", "reads", given(**query))))

    def act(
        self, action: str, *, ids: Iterable[str] | None = None, filter: t.ActionFilter | None = None, due_at: Time | None = None,
        shift: Span | None = None, dry_run: bool = False, limit: int | None = None, cursor: str | None = None,
    ) -> t.Acted:
        """Does one thing with up to 1,000 tasks. Repeat it with the next_cursor as cursor until there is
        none, or use act_all."""
        again = action in ("fire", "requeue", "delete") and not cursor and not dry_run
        body = given(action=action, ids=None if ids is None else receipts_of(ids), filter=filter, due_at=due_at, shift=shift,
                     dry_run=dry_run or None, limit=limit, cursor=cursor)
        call = Call("POST", "/v1/tasks/actions", "again" if again else "same", body=encode(body), extra=WHOLE_TOPIC)
        return cast(t.Acted, self._json(call))

    def act_all(
        self, action: str, *, filter: t.ActionFilter, due_at: Time | None = None, shift: Span | None = None, dry_run: bool = False,
    ) -> Iterator[t.Acted]:
        """Does one thing with all tasks that a filter selects, and yields the answer of each call."""
        cursor: str | None = None
        while True:
            answer = self.act(action, filter=filter, due_at=due_at, shift=shift, dry_run=dry_run, cursor=cursor)
            yield answer
            cursor = answer.get("next_cursor")
            if not cursor:
                return

    # Groups.

    def group(self, group: str, **query: Any) -> Iterator[t.Task]:
        """Yields all tasks of a group, of whatever topics, soonest first."""
        return self._pages(path("/v1/groups/", group), "tasks", query)

    def cancel_group(self, group: str) -> t.GroupCancelled:
        """Cancels all pending and ready tasks of a group."""
        return cast(t.GroupCancelled, self._json(Call("DELETE", path("/v1/groups/", group), "again", extra=WHOLE_TOPIC)))

    # Topics.

    def topics(self, **query: Any) -> Iterator[t.Topic]:
        """Yields all topics. The query has the names of GET /v1/topics: search, sort, scope, limit."""
        return self._pages("/v1/topics", "topics", query)

    def topics_page(self, **query: Any) -> t.TopicList:
        """Returns one page of topics. It may be empty although there are more: then it has a next_cursor."""
        return cast(t.TopicList, self._json(Call("GET", "/v1/topics", "reads", given(**query))))

    def topic(self, topic: str, *, scope: str | None = None) -> t.TopicAnswer:
        """Returns the settings and counts of a topic. scope "node": those of the server alone."""
        return cast(t.TopicAnswer, self._json(Call("GET", path("/v1/topics/", topic), "reads", given(scope=scope))))

    def put_topic(self, topic: str, settings: t.NewTopic, *, revision: int | None = None, replace: bool | None = None) -> t.Topic:
        """Replaces all settings of a topic: what is left out gets its default. With a revision it is
        refused (precondition_failed) if the settings have another one; 0: if there are any."""
        call = Call("PUT", path("/v1/topics/", topic), "same", given(replace=replace), encode(plain(settings)))
        return cast(t.Topic, self._json(_guarded(call, revision)))

    def patch_topic(self, topic: str, change: Mapping[str, Any], *, revision: int | None = None) -> t.Topic:
        """Changes some settings of a topic; None gives a field its default."""
        call = Call("PATCH", path("/v1/topics/", topic), "same", body=encode(plain(change)))
        return cast(t.Topic, self._json(_guarded(call, revision)))

    def delete_topic(self, topic: str, *, force: bool | None = None, revision: int | None = None) -> None:
        """Forgets the settings of a topic without tasks. With force its tasks become dead first."""
        call = Call("DELETE", path("/v1/topics/", topic), "again", given(force=force), extra=WHOLE_TOPIC if force else 0)
        self._call(_guarded(call, revision))

    def pause_topic(self, topic: str) -> None:
        """Stops the delivery of the tasks of a topic. They are accepted, and wait."""
        self._call(Call("POST", path("/v1/topics/", topic, "/pause"), "same"))

    def resume_topic(self, topic: str) -> None:
        """Has the tasks of a topic delivered again."""
        self._call(Call("POST", path("/v1/topics/", topic, "/resume"), "same"))

    def purge_topic(self, topic: str) -> t.Purged:
        """Cancels all pending and ready tasks of a topic, or of all topics whose names begin so
        ("order.*")."""
        return cast(t.Purged, self._json(Call("DELETE", path("/v1/topics/", topic, "/tasks"), "again", extra=WHOLE_TOPIC)))

    # Receivers.

    def reserve(self, topic: str, *, max: int | None = None, wait: Span | None = None, lease: Span | None = None) -> List[t.Delivery]:
        """Takes tasks that are ready, and waits for the first one as long as wait says. A worker does
        all of this by itself."""
        body = encode(given(max=max, wait=wait, lease=lease))
        call = Call("POST", path("/v1/topics/", topic, "/reserve"), "again", body=body, extra=seconds("wait", wait))
        answer = self._json(call)
        return cast("List[t.Delivery]", answer["tasks"])

    def ack(self, receipts: str | Iterable[str]) -> t.Settlement:
        """Finishes deliveries: the tasks are done. Up to 1,000 receipts, here and below; each has its
        own outcome."""
        return cast(t.Settlement, self._json(_verdict("ack", "same", receipts)))

    def give_back(self, receipts: str | Iterable[str]) -> t.Settlement:
        """Gives back deliveries that were not begun (``POST /v1/receipts/return``): their tasks are ready
        again at once, and the attempt does not count."""
        return cast(t.Settlement, self._json(_verdict("return", "again", receipts)))

    def release(self, receipts: str | Iterable[str], *, delay: Span | None = None, reason: str | None = None) -> t.Settlement:
        """Ends deliveries without success: another attempt follows after the delay, or after the topic's
        backoff."""
        return cast(t.Settlement, self._json(_verdict("release", "again", receipts, delay=delay, reason=reason)))

    def extend(self, receipts: str | Iterable[str], *, lease: Span | None = None) -> t.Settlement:
        """Begins the leases of deliveries again."""
        return cast(t.Settlement, self._json(_verdict("extend", "same", receipts, lease=lease)))

    def bury(self, receipts: str | Iterable[str], *, reason: str | None = None) -> t.Settlement:
        """Gives deliveries up: the tasks are dead."""
        return cast(t.Settlement, self._json(_verdict("bury", "again", receipts, reason=reason)))

    # Dead tasks.

    def dead(self, topic: str, **query: Any) -> Iterator[t.Task]:
        """Yields the dead tasks of a topic, the longest dead first. The query has the names of GET
        /v1/topics/{topic}/dead: reason, error, id_prefix, died_from, died_to, details, limit."""
        return self._pages(path("/v1/topics/", topic, "/dead"), "tasks", query)

    def requeue_dead(
        self, topic: str, *, ids: Iterable[str] | None = None, all: bool = False, delay: Span | None = None, due_at: Time | None = None,
        **mend: Any,
    ) -> t.Requeued:
        """Brings dead tasks back: those with the ids, or all. payload, headers and delivery are what
        the one task of ids has from now on, in the same step."""
        body = encode(given(ids=None if ids is None else receipts_of(ids), all=all or None, delay=delay, due_at=due_at, **mend))
        call = Call("POST", path("/v1/topics/", topic, "/dead/requeue"), "again", body=body, extra=WHOLE_TOPIC)
        return cast(t.Requeued, self._json(call))

    def redrive(
        self, *, filter: t.ActionFilter | None = None, rate: int = 100, first: int = 10, within: float = 60.0,
    ) -> Iterator[Redriven]:
        """Requeues dead tasks slowly: rate a second, topic by topic, those of up to 100 topics if filter
        has none. Of each topic the first ones come back first. Where all of them fail again, or none
        is delivered within so many seconds, the others stay dead. It yields what has become of a topic
        after each step; a loop that is left leaves the others dead."""
        if not 1 <= rate <= 1000 or not 0 <= first <= 100:
            raise ValueError("rate must be from 1 to 1000, and first from 0 to 100")
        died_to = (datetime.now(timezone.utc) + timedelta(milliseconds=1)).isoformat()
        of = cast(t.ActionFilter, {"died_to": died_to, **(filter or {})})
        counts = self.count(**of, state="dead", within="10s")
        for counted in counts["topics"]:
            of["topic"] = counted["topic"]
            requeued = 0
            ids = self._first_dead(of, first)
            if ids:
                answer = self.act("requeue", ids=ids)
                requeued += answer["done"]
                yield Redriven(counted["topic"], requeued)
                stopped = self._failure(ids, within)
                if stopped:
                    yield Redriven(counted["topic"], requeued, stopped)
                    continue
            cursor: str | None = None
            while True:
                answer = self.act("requeue", filter=of, limit=rate, cursor=cursor)
                requeued += answer["done"]
                cursor = answer.get("next_cursor")
                yield Redriven(counted["topic"], requeued, over=not cursor)
                if not cursor:
                    break
                if answer["done"]:
                    time.sleep(1)

    def _first_dead(self, of: t.ActionFilter, most: int) -> List[str]:
        query: Dict[str, Any] = {name: value for name, value in of.items() if name != "topic"}
        ids: List[str] = []
        while most > 0 and not ids:
            call = Call("GET", path("/v1/topics/", of["topic"], "/dead"), "reads", {**query, "limit": most, "details": False})
            page = cast(t.TaskPage, self._json(call))
            ids = [dead["id"] for dead in page["tasks"]]
            if not page.get("next_cursor"):
                break
            query["cursor"] = page["next_cursor"]
        return ids

    def _failure(self, ids: List[str], within: float) -> str:
        """Why all of the tasks have failed again; "" if one was delivered."""
        for _ in range(1 + int(within / 0.25)):
            failed, why = 0, ""
            for id in ids:
                page = cast(t.TaskPage, self._json(Call("GET", "/v1/tasks", "reads", {"id": id})))
                if not page["tasks"] or page["tasks"][0]["state"] == "finished":
                    return ""
                now = page["tasks"][0]
                if now["state"] == "dead" or (now["attempt"] > 0 and now["state"] != "delivering"):
                    failed, why = failed + 1, now.get("last_error", "")
            if failed == len(ids):
                return f"the first {failed} failed again: {why}"
            time.sleep(0.25)
        return f"none of the first {len(ids)} was delivered within {within:g} s"

    def delete_dead(self, topic: str, *, ids: Iterable[str] | None = None, all: bool = False) -> None:
        """Deletes dead tasks: those with the ids, or all."""
        body = encode(given(ids=None if ids is None else receipts_of(ids), all=all or None))
        # A repeated call for all would also delete tasks that have died since.
        self._call(Call("DELETE", path("/v1/topics/", topic, "/dead"), "again" if all else "same", body=body, extra=WHOLE_TOPIC))

    # The server.

    def nodes(self) -> List[t.Node]:
        """Returns the nodes that share the server's ledger, as it last saw them."""
        answer = self._json(Call("GET", "/v1/nodes", "reads"))
        return cast("List[t.Node]", answer["nodes"])

    def drain_node(self, node: str) -> None:
        """Has a node hand over its tasks and end. It returns when that has begun."""
        self._call(Call("POST", path("/v1/nodes/", node, "/drain"), "same"))

    def stats(self, *, scope: str | None = None, topics: bool | None = None) -> t.Stats:
        """Returns the counts of all nodes, or of the server alone with the scope "node"."""
        return cast(t.Stats, self._json(Call("GET", "/v1/stats", "reads", given(scope=scope, topics=topics))))

    def diagnosis(self) -> t.Diagnosis:
        """What is wrong, the causes first."""
        return cast(t.Diagnosis, self._json(Call("GET", "/v1/diagnosis", "reads")))

    def history(
        self, *, minutes: int | None = None, scope: str | None = None, topic: str | None = None, from_: str | None = None,
        to: str | None = None, step: str | None = None,
    ) -> t.History:
        """What has happened, by the minute (step 1m) for a day, or by the hour (1h) for a month."""
        query = given(minutes=minutes, scope=scope, topic=topic, to=to, step=step, **{"from": from_})
        return cast(t.History, self._json(Call("GET", "/v1/history", "reads", query)))

    def count(self, **query: Any) -> t.TaskCounts:
        """Counts the tasks that list has with the same query, by topic and state. within bounds the
        time that the nodes look for."""
        return cast(t.TaskCounts, self._json(Call("GET", "/v1/counts", "reads", given(**query))))

    def search(
        self, text: str, *, cursor: str | None = None, limit: int | None = None, within: str | None = None, scope: str | None = None,
    ) -> t.FoundPart:
        """Finds tasks in all states, groups and topics by a part of their names: one part of the
        search, which goes on with next_cursor until there is none."""
        query = given(q=text, cursor=cursor, limit=limit, within=within, scope=scope)
        return cast(t.FoundPart, self._json(Call("GET", "/v1/search", "reads", query)))

    def audit(
        self, *, topic: str | None = None, from_: str | None = None, to: str | None = None, limit: int | None = None,
        cursor: str | None = None,
    ) -> t.AuditPage:
        """Who did what, the latest first."""
        query = given(topic=topic, to=to, limit=limit, cursor=cursor, **{"from": from_})
        return cast(t.AuditPage, self._json(Call("GET", "/v1/audit", "reads", query)))

    def undo(self, act: str) -> t.Undone:
        """Takes back an act that the log of actions names, if nothing has changed since."""
        return cast(t.Undone, self._json(Call("POST", path("/v1/audit/", act, "/undo"), "again")))

    def wave(self, from_: str, to: str | None = None, *, topic: str | None = None, scope: str | None = None) -> t.Wave:
        """Returns how far the tasks are that were due in a span: from_ and to are times in RFC 3339."""
        return cast(t.Wave, self._json(Call("GET", "/v1/waves", "reads", {"from": from_, **given(to=to, topic=topic, scope=scope)})))

    def forecast(self, *, topic: str | None = None, window: str | None = None, step: str | None = None, scope: str | None = None) -> t.Forecast:
        """Counts the tasks that fall due, by time: within a window such as "1d", in steps such as "1h"."""
        return cast(t.Forecast, self._json(Call("GET", "/v1/forecast", "reads", given(topic=topic, window=window, step=step, scope=scope))))

    def ready(self) -> t.Readiness:
        """Asks once whether the server is ready. That it is not is no failure."""
        return cast(t.Readiness, self._json(Call("GET", "/readyz", "reads", also=503)))

    def events(self, *, topics: Iterable[str] = (), kinds: Iterable[str] = (), scope: str | None = None) -> Events:
        """Opens a stream of the events of tasks, beginning with those after this returns. It goes on
        until it is left or fails; events until the next stream are missed."""
        call = Call("GET", "/v1/events", "reads", given(topic=[*topics], kind=[*kinds], scope=scope),
                    accept="text/event-stream, application/problem+json")
        attempts = Attempts(self._o, call)
        while True:
            try:
                return self._transport.open(self._o, call, self._o.timeout)
            except LapseError as e:
                time.sleep(attempts.pause(e))

    def _call(self, call: Call) -> Answer:
        """Makes a call, and repeats it as long as that is safe."""
        attempts = Attempts(self._o, call)
        while True:
            try:
                answer = self._transport.send(self._o, call, self._o.timeout + call.extra)
                return answer.checked(call)
            except LapseError as e:
                time.sleep(attempts.pause(e))

    def _json(self, call: Call) -> Any:
        answer = self._call(call)
        return answer.json(call)

    def _put(self, call: Call) -> t.ScheduledTask:
        answer = self._call(call)
        return cast(t.ScheduledTask, {**answer.json(call), "created": answer.status != 200})

    def _pages(self, path: str, name: str, query: Mapping[str, Any]) -> Iterator[Any]:
        query = given(**query)
        while True:
            page = self._json(Call("GET", path, "reads", query))
            for one in page[name]:
                yield one
            if not page.get("next_cursor"):
                return
            query = {**query, "cursor": page["next_cursor"]}


def _guarded(call: Call, revision: int | None) -> Call:
    if revision is not None:
        # A repeated call would find its own new revision.
        call.effect, call.headers = "again", {"If-Match": f'"{revision}"'}
    return call


def _verdict(verb: str, effect: Any, receipts: str | Iterable[str], **more: Any) -> Call:
    return Call("POST", f"/v1/receipts/{verb}", effect, body=encode({"receipts": receipts_of(receipts), **given(**more)}))
