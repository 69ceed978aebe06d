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
    MISSING, WHOLE_TOPIC, Answer, Attempts, Call, OnRepeat, Options, RedrivenTopic, Span, Time, encode, given, instant, new_id, options, path, plain,
    receipts_of, seconds, span, task, with_ids,
)
from ._errors import LapseError
from ._http import Events, Transport


class Client:
    """Calls one server. Every call fails with a LapseError, whose ``code`` says why. The methods name
    the codes of their own; each may fail with "invalid", "unauthorized", "forbidden", "overloaded",
    "ledger_unavailable", "unreachable" or "outcome_unknown" as well, which docs/problems.md explains.
    A span is a timedelta, or text such as "30m", a time a datetime with a zone, or RFC 3339 text.
    Arguments that cannot be sent raise ValueError or TypeError.

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
        """Returns a client with other options that shares the connections of this one.

        timeout, retries: as of the class; what is left out stays.
        """
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
        """Has a task delivered when it is due. It is recorded once this returns.

        topic: whose receivers get it.
        delay, due_at: the deadline, as a span from now or as a time. Without either it is due at once.
        payload: any JSON; None is null.
        id: of the task. Without one it gets one, so that the call can be repeated.
        headers: text by name, which receivers get with it.
        max_lateness: by how much it may be late before the topic's misfire policy applies.
        group: tasks of one group are listed and cancelled together.
        delivery: what is other for this task than for its topic, such as {"url": ...}.

        "created" of the answer is False if the same task was there before. Fails with "id_taken" if
        another one has the id, "quota" or "too_large".
        """
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
        "errors" of the answer.

        tasks: objects with the arguments of schedule; only "topic" is required.

        Fails as a whole with "too_large".
        """
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

    def replace(
        self, topic: str, *, id: str, delay: Span | None = None, due_at: Time | None = None, payload: Any = MISSING,
        headers: Mapping[str, str] | None = None, max_lateness: Span | None = None, group: str | None = None,
        delivery: Mapping[str, Any] | None = None,
    ) -> t.ScheduledTask:
        """Schedules a task in place of the pending or ready one with its id, if there is one.

        The arguments are those of schedule. "created" of the answer is False if there was one. Fails
        with "delivering", "dead", "quota" or "too_large".
        """
        body = task(given(
            topic=topic, delay=delay, due_at=due_at, headers=headers, max_lateness=max_lateness, group=group, delivery=delivery,
        ), payload)
        return self._put(Call("PUT", path("/v1/tasks/", id), "same", body=encode(body)))

    def get(self, id: str) -> t.Task:
        """Returns a task. Fails with "not_found"."""
        return cast(t.Task, self._json(Call("GET", path("/v1/tasks/", id), "reads")))

    def reschedule(
        self, id: str, delay: Span | None = None, *, due_at: Time | None = None, payload: Any = MISSING,
        delivery: Mapping[str, Any] | None = None,
    ) -> t.Task:
        """Moves the deadline of a task, or gives it another payload or delivery, in one step.

        delay, due_at: the new deadline, as a span from now or as a time. Without either it stays.
        payload: any JSON; None is null.
        delivery: takes the place of what the task has of its own. An empty one takes that away.

        Fails with "not_found", "delivering", "dead" or "too_large".
        """
        body = encode(task(given(delay=delay, due_at=due_at, delivery=delivery), payload))
        return cast(t.Task, self._json(Call("PATCH", path("/v1/tasks/", id), "same", body=body)))

    def cancel(self, id: str) -> None:
        """Makes sure that a task is not delivered any more. A dead one is deleted. Fails with
        "not_found" or "delivering"."""
        self._call(Call("DELETE", path("/v1/tasks/", id), "same"))

    def fire(self, id: str) -> t.Task:
        """Makes a pending task due now. Fails as reschedule does."""
        return cast(t.Task, self._json(Call("POST", path("/v1/tasks/", id, "/fire"), "again")))

    def hold(self, id: str) -> t.Task:
        """Holds the countdown of a task: it keeps the time that is left until it is resumed. Fails as
        reschedule does."""
        return cast(t.Task, self._json(Call("POST", path("/v1/tasks/", id, "/hold"), "same")))

    def resume(self, id: str) -> t.Task:
        """Lets a held countdown go on. Fails with "not_found" or "dead"."""
        return cast(t.Task, self._json(Call("POST", path("/v1/tasks/", id, "/resume"), "same")))

    def all(self, **query: Any) -> Iterator[t.Task]:
        """Yields all tasks that a query selects, soonest first, page by page.

        query: the names of GET /v1/tasks: topic, group, state, id_prefix, error, due_from, due_to,
          reason, died_from, died_to, details, limit (of a page).
        """
        return self._pages("/v1/tasks", "tasks", query)

    def list(self, **query: Any) -> t.TaskPage:
        """Returns one page of all. It may be empty although there are more: then it has a next_cursor,
        which is the cursor of the query for the next page."""
        return cast(t.TaskPage, self._json(Call("GET", "/v1/tasks", "reads", given(**query))))

    def act(
        self, action: str, *, ids: Iterable[str] | None = None, filter: t.ActionFilter | None = None, due_at: Time | None = None,
        shift: Span | None = None, dry_run: bool = False, limit: int | None = None, cursor: str | None = None,
    ) -> t.Acted:
        """Does one thing with up to 1,000 tasks. Repeat it with the next_cursor as cursor until there is
        none, or use act_all.

        action: "cancel", "fire", "move", "hold", "resume", "requeue" or "delete".
        ids, filter: which tasks: 1 to 1,000 names, or what selects them.
        due_at: the new deadline, of "move" and "requeue".
        shift: of "move" in place of due_at, is added to each deadline. It may be negative.
        dry_run: counts the tasks, up to 20,000 a call, and changes nothing.
        limit: tasks of this call, up to 1,000.
        cursor: the next_cursor of the answer before.

        Some may have been changed before it fails.
        """
        again = action in ("fire", "requeue", "delete") and not cursor and not dry_run
        body = given(action=action, ids=None if ids is None else receipts_of(ids), filter=filter, due_at=due_at, shift=shift,
                     dry_run=dry_run or None, limit=limit, cursor=cursor)
        call = Call("POST", "/v1/tasks/actions", "again" if again else "same", body=encode(body), extra=WHOLE_TOPIC)
        return cast(t.Acted, self._json(call))

    def act_all(
        self, action: str, *, filter: t.ActionFilter, due_at: Time | None = None, shift: Span | None = None, dry_run: bool = False,
    ) -> Iterator[t.Acted]:
        """Does one thing with all tasks that a filter selects, and yields the answer of each call. The
        arguments are those of act."""
        cursor: str | None = None
        while True:
            answer = self.act(action, filter=filter, due_at=due_at, shift=shift, dry_run=dry_run, cursor=cursor)
            yield answer
            cursor = answer.get("next_cursor")
            if not cursor:
                return

    # Groups.

    def group(self, group: str, **query: Any) -> Iterator[t.Task]:
        """Yields all tasks of a group, of whatever topics, soonest first.

        query: id_prefix, error, error_like, due_from, due_to, limit (of a page).
        """
        return self._pages(path("/v1/groups/", group), "tasks", query)

    def cancel_group(self, group: str) -> t.GroupCancelled:
        """Cancels all pending and ready tasks of a group. Some may have been cancelled before it fails;
        repeating the call does the rest."""
        return cast(t.GroupCancelled, self._json(Call("DELETE", path("/v1/groups/", group), "again", extra=WHOLE_TOPIC)))

    # Topics.

    def topics(self, **query: Any) -> Iterator[t.TopicInfo]:
        """Yields all topics with their settings and counts, page by page.

        query: the names of GET /v1/topics: search, sort, scope, limit (of a page).
        """
        return self._pages("/v1/topics", "topics", query)

    def list_topics(self, **query: Any) -> t.TopicList:
        """Returns one page of topics. It may be empty although there are more: then it has a next_cursor,
        which is the cursor of the query for the next page."""
        return cast(t.TopicList, self._json(Call("GET", "/v1/topics", "reads", given(**query))))

    def topic(self, topic: str, *, scope: str | None = None) -> t.TopicAnswer:
        """Returns the settings and counts of a topic.

        scope: "node" counts the tasks of the server alone.

        Fails with "topic_not_found" if it was never set up and never had a task.
        """
        return cast(t.TopicAnswer, self._json(Call("GET", path("/v1/topics/", topic), "reads", given(scope=scope))))

    def set_topic(self, topic: str, settings: t.NewTopic, *, revision: int | None = None, replace: bool | None = None) -> t.TopicInfo:
        """Replaces all settings of a topic: what is left out gets its default.

        revision: refuses the change if the settings have another one; 0: if there are any.
        replace: True: also if that drops a way of delivery of which tasks wait.

        Fails with "precondition_failed" or "delivery_dropped".
        """
        call = Call("PUT", path("/v1/topics/", topic), "same", given(replace=replace), encode(plain(settings)))
        return cast(t.TopicInfo, self._json(_guarded(call, revision)))

    def change_topic(self, topic: str, change: Mapping[str, Any], *, revision: int | None = None) -> t.TopicInfo:
        """Changes some settings of a topic.

        change: the settings; None gives a field its default.
        revision: as of set_topic.

        Fails with "precondition_failed" or "delivery_dropped".
        """
        call = Call("PATCH", path("/v1/topics/", topic), "same", body=encode(plain(change)))
        return cast(t.TopicInfo, self._json(_guarded(call, revision)))

    def delete_topic(self, topic: str, *, revision: int | None = None) -> None:
        """Forgets the settings of a topic without tasks.

        revision: as of set_topic.

        Fails with "topic_in_use", "topic_not_found" or "precondition_failed".
        """
        self._call(_guarded(Call("DELETE", path("/v1/topics/", topic), "again"), revision))

    def kill_topic(self, topic: str, *, revision: int | None = None) -> None:
        """Makes the pending and ready tasks of a topic dead, and forgets its settings. Deliveries are
        left to their receivers.

        revision: as of set_topic.

        Fails with "topic_not_found" or "precondition_failed". Some may be dead before it fails; repeating
        the call does the rest.
        """
        self._call(_guarded(Call("DELETE", path("/v1/topics/", topic), "again", {"force": True}, extra=WHOLE_TOPIC), revision))

    def pause_topic(self, topic: str) -> None:
        """Stops the delivery of the tasks of a topic. They are accepted, and wait."""
        self._call(Call("POST", path("/v1/topics/", topic, "/pause"), "same"))

    def resume_topic(self, topic: str) -> None:
        """Has the tasks of a topic delivered again."""
        self._call(Call("POST", path("/v1/topics/", topic, "/resume"), "same"))

    def purge(self, topic: str) -> t.Purged:
        """Cancels all pending and ready tasks of a topic, or of all topics whose names begin so
        ("order.*"). Some may have been cancelled before it fails; repeating the call does the rest."""
        return cast(t.Purged, self._json(Call("DELETE", path("/v1/topics/", topic, "/tasks"), "again", extra=WHOLE_TOPIC)))

    # Receivers.

    def reserve(self, topic: str, *, max: int | None = None, wait: Span | None = None, lease: Span | None = None) -> List[t.Delivery]:
        """Takes tasks that are ready, and waits for the first one. A worker does all of this by itself.

        max: tasks of this call, 1 to 1,000; 1 if left out.
        wait: for how long, up to "60s"; not at all if left out.
        lease: for how long no other receiver gets them; the topic's lease if left out.

        Fails with "handled" if the tasks of the topic are pushed to where they go.
        """
        body = encode(given(max=max, wait=wait, lease=lease))
        call = Call("POST", path("/v1/topics/", topic, "/reserve"), "again", body=body, extra=seconds("wait", wait))
        answer = self._json(call)
        return cast("List[t.Delivery]", answer["tasks"])

    def ack(self, receipts: str | Iterable[str]) -> t.Settlement:
        """Finishes deliveries: the tasks are done.

        receipts: one, or up to 1,000, here and below. Each has its own outcome: see "errors" of the
          answer, with "stale_receipt" or "bad_receipt".
        """
        return cast(t.Settlement, self._json(_verdict("ack", "same", receipts)))

    def give_back(self, receipts: str | Iterable[str]) -> t.Settlement:
        """Gives back deliveries that were not begun (``POST /v1/receipts/return``): their tasks are ready
        again at once, and the attempt does not count.

        receipts: as of ack.
        """
        return cast(t.Settlement, self._json(_verdict("return", "again", receipts)))

    def release(self, receipts: str | Iterable[str], *, delay: Span | None = None, reason: str | None = None) -> t.Settlement:
        """Ends deliveries without success: another attempt follows.

        receipts: as of ack.
        delay: until the next attempt; the topic's backoff if left out.
        reason: is kept as last_error.
        """
        return cast(t.Settlement, self._json(_verdict("release", "again", receipts, delay=delay, reason=reason)))

    def extend(self, receipts: str | Iterable[str], *, lease: Span | None = None) -> t.Settlement:
        """Begins the leases of deliveries again.

        receipts: as of ack.
        lease: how long they are; the topic's lease if left out.
        """
        return cast(t.Settlement, self._json(_verdict("extend", "same", receipts, lease=lease)))

    def bury(self, receipts: str | Iterable[str], *, reason: str | None = None) -> t.Settlement:
        """Gives deliveries up: the tasks are dead.

        receipts: as of ack.
        reason: is kept as last_error.
        """
        return cast(t.Settlement, self._json(_verdict("bury", "again", receipts, reason=reason)))

    # Dead tasks.

    def all_dead(self, topic: str, **query: Any) -> Iterator[t.Task]:
        """Yields the dead tasks of a topic, the longest dead first, page by page.

        query: the names of GET /v1/topics/{topic}/dead: reason, error, id_prefix, died_from, died_to,
          details, limit (of a page).
        """
        return self._pages(path("/v1/topics/", topic, "/dead"), "tasks", query)

    def list_dead(self, topic: str, **query: Any) -> t.TaskPage:
        """Returns one page of all_dead. The next_cursor of a page is the cursor of the query for the next
        one."""
        return cast(t.TaskPage, self._json(Call("GET", path("/v1/topics/", topic, "/dead"), "reads", given(**query))))

    def dead_reasons(self, topic: str | None = None, **query: Any) -> t.DeadReasons:
        """Says why tasks are dead, and how many died of each reason.

        topic: of those of one topic. Left out: of all.
        query: the names of GET /v1/dead/reasons: group, id_prefix, error, reason, died_from, died_to.
        """
        of = "/v1/dead/reasons" if topic is None else path("/v1/topics/", topic, "/dead/reasons")
        return cast(t.DeadReasons, self._json(Call("GET", of, "reads", given(**query))))

    def requeue_dead(
        self, topic: str, *, ids: Iterable[str] | None = None, all: bool = False, delay: Span | None = None, due_at: Time | None = None,
        **mend: Any,
    ) -> t.Requeued:
        """Brings dead tasks back, due now.

        ids, all: which ones: up to 1,000 names, or all of the topic.
        delay, due_at: another deadline.
        mend: payload, headers and delivery that the one task of ids has from now on, in the same step.

        Some may have come back before it fails.
        """
        body = encode(given(ids=None if ids is None else receipts_of(ids), all=all or None, delay=delay, due_at=due_at, **mend))
        call = Call("POST", path("/v1/topics/", topic, "/dead/requeue"), "again", body=body, extra=WHOLE_TOPIC)
        return cast(t.Requeued, self._json(call))

    def redrive(
        self, *, filter: t.ActionFilter | None = None, rate: int = 100, first: int = 10, within: float = 60.0,
    ) -> Iterator[RedrivenTopic]:
        """Requeues dead tasks slowly, topic by topic, and yields what has become of a topic after each
        step. A loop that is left leaves the others dead.

        filter: which ones. Without a topic, those of up to 100 topics, the ones with most first.
        rate: tasks a second, 1 to 1,000.
        first: so many of each topic come back first, 0 to 100. Where all of them fail again, or none is
          delivered in time, the others stay dead.
        within: how long the first ones have for that, in seconds.
        """
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
                yield RedrivenTopic(counted["topic"], requeued)
                stopped = self._failure(ids, within)
                if stopped:
                    yield RedrivenTopic(counted["topic"], requeued, stopped)
                    continue
            cursor: str | None = None
            while True:
                answer = self.act("requeue", filter=of, limit=rate, cursor=cursor)
                requeued += answer["done"]
                cursor = answer.get("next_cursor")
                yield RedrivenTopic(counted["topic"], requeued, over=not cursor)
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

    def delete_dead(self, topic: str, ids: Iterable[str]) -> None:
        """Deletes dead tasks of a topic, up to 1,000. Ids that are not there are passed over."""
        body = encode({"ids": receipts_of(ids)})
        self._call(Call("DELETE", path("/v1/topics/", topic, "/dead"), "same", body=body, extra=WHOLE_TOPIC))

    def delete_all_dead(self, topic: str) -> None:
        """Deletes all dead tasks of a topic."""
        # A repeated call would also delete tasks that have died since.
        self._call(Call("DELETE", path("/v1/topics/", topic, "/dead"), "again", body=encode({"all": True}), extra=WHOLE_TOPIC))

    # The server.

    def nodes(self) -> List[t.Node]:
        """Returns the nodes that share the server's ledger, as it last saw them."""
        answer = self._json(Call("GET", "/v1/nodes", "reads"))
        return cast("List[t.Node]", answer["nodes"])

    def node(self, node: str) -> t.Node:
        """Returns one of the nodes, and where its shards are. Fails with "node_not_found"."""
        return cast(t.Node, self._json(Call("GET", path("/v1/nodes/", node), "reads")))

    def drain_node(self, node: str) -> None:
        """Has a node hand over its tasks and end. It returns when that has begun. Fails with
        "node_not_found" or "nobody_to_take_over"."""
        self._call(Call("POST", path("/v1/nodes/", node, "/drain"), "same"))

    def stats(self, *, scope: str | None = None, topics: bool | None = None) -> t.Stats:
        """Returns the counts of all nodes.

        scope: "node": of the server alone.
        topics: False leaves out the counts of each topic, so that the answer is small.
        """
        return cast(t.Stats, self._json(Call("GET", "/v1/stats", "reads", given(scope=scope, topics=topics))))

    def diagnosis(self) -> t.Diagnosis:
        """Says what is wrong, the causes first."""
        return cast(t.Diagnosis, self._json(Call("GET", "/v1/diagnosis", "reads")))

    def history(
        self, *, minutes: int | None = None, scope: str | None = None, topic: str | None = None, from_: str | None = None,
        to: str | None = None, step: str | None = None,
    ) -> t.History:
        """Says what has happened, by the minute for a day, or by the hour for a month.

        minutes: how many steps before the one under way; or
        from_, to: RFC 3339 text.
        step: "1m" or "1h".
        scope: "node": at the server alone.
        topic: of one topic.
        """
        query = given(minutes=minutes, scope=scope, topic=topic, to=to, step=step, **{"from": from_})
        return cast(t.History, self._json(Call("GET", "/v1/history", "reads", query)))

    def count(self, **query: Any) -> t.TaskCounts:
        """Counts the tasks that all has with the same query, by topic and state.

        query: the names of all, and within: for how long the nodes look, 50ms to 10s.
        """
        return cast(t.TaskCounts, self._json(Call("GET", "/v1/counts", "reads", given(**query))))

    def search(
        self, text: str, *, cursor: str | None = None, limit: int | None = None, within: str | None = None, scope: str | None = None,
    ) -> t.FoundPart:
        """Finds tasks in all states, groups and topics by a part of their names. It is one part of the
        search: searches goes on to its end.

        text: the part of a name.
        cursor: the next_cursor of the part before.
        limit: finds of this part.
        within: for how long the nodes look, 50ms to 10s.
        scope: "node": at the server alone.
        """
        query = given(q=text, cursor=cursor, limit=limit, within=within, scope=scope)
        return cast(t.FoundPart, self._json(Call("GET", "/v1/search", "reads", query)))

    def searches(self, text: str, *, limit: int | None = None, within: str | None = None, scope: str | None = None) -> Iterator[t.FoundPart]:
        """Yields the parts of a search to its end. A task or a group may be in several. The arguments
        are those of search."""
        cursor: str | None = None
        while True:
            part = self.search(text, cursor=cursor, limit=limit, within=within, scope=scope)
            yield part
            cursor = part.get("next_cursor")
            if not cursor:
                return

    def audit(
        self, *, topic: str | None = None, from_: str | None = None, to: str | None = None, limit: int | None = None,
        cursor: str | None = None,
    ) -> t.AuditPage:
        """Says who did what, the latest first.

        topic: with the tasks of one topic.
        from_, to: RFC 3339 text.
        limit, cursor: of a page. Its next_cursor is the cursor of the next one.
        """
        query = given(topic=topic, to=to, limit=limit, cursor=cursor, **{"from": from_})
        return cast(t.AuditPage, self._json(Call("GET", "/v1/audit", "reads", query)))

    def undo(self, act: str) -> t.Undone:
        """Takes back an act that audit names, if nothing has changed since. Fails with "act_not_found",
        "precondition_failed", or "not_undone" where the log does not have what it takes."""
        return cast(t.Undone, self._json(Call("POST", path("/v1/audit/", act, "/undo"), "again")))

    def wave(self, from_: str, to: str | None = None, *, topic: str | None = None, scope: str | None = None) -> t.Wave:
        """Says how far the tasks are that were due in a span.

        from_, to: RFC 3339 text; to is now if left out.
        topic: of one topic.
        scope: "node": at the server alone.
        """
        return cast(t.Wave, self._json(Call("GET", "/v1/waves", "reads", {"from": from_, **given(to=to, topic=topic, scope=scope)})))

    def forecast(self, *, topic: str | None = None, window: str | None = None, step: str | None = None, scope: str | None = None) -> t.Forecast:
        """Counts the tasks that fall due, by time.

        topic: of one topic.
        window, step: text such as "1d" and "1h".
        scope: "node": at the server alone.
        """
        return cast(t.Forecast, self._json(Call("GET", "/v1/forecast", "reads", given(topic=topic, window=window, step=step, scope=scope))))

    def alive(self) -> t.Alive:
        """Asks once whether the server's scheduler runs and moves. That it does not is no failure: see
        "status"."""
        return cast(t.Alive, self._json(Call("GET", "/healthz", "reads", also=503)))

    def ready(self) -> t.Readiness:
        """Asks once whether the server is ready. That it is not is no failure: see "ready"."""
        return cast(t.Readiness, self._json(Call("GET", "/readyz", "reads", also=503)))

    def events(self, *, topics: Iterable[str] = (), kinds: Iterable[str] = (), scope: str | None = None) -> Events:
        """Opens a stream of the events of tasks, beginning with those after this returns. It goes on until
        it is left or fails; events until the next stream are missed.

        topics, kinds: of these alone; all if left out.
        scope: "node": of the server alone.

        Fails with "overloaded" if too many streams are open.
        """
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
