"""Topics whose tasks carry values of one type."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, overload

from ._aclient import AsyncClient
from ._client import Client
from ._core import MISSING, Span
from ._judgement import Kill
from ._run import Context
from ._threads import Worker
from ._worker import AsyncWorker
from .types import Delivery, ScheduledTask

T = TypeVar("T")
R = TypeVar("R")


class Topic(Generic[T]):
    """The name of a topic together with the type of what its tasks carry. It is a value of the
    program, like a constant, and calls nothing::

        unpaid = lapse.Topic("order.unpaid", Order)

    name: of the topic.
    kind: the type of each payload: a dataclass, a TypedDict, list[...], dict[str, ...], str, int,
      float, bool, or one of them | None. A dataclass is an object of JSON; fields that it does not
      have are passed over. Any: whatever comes.
    decode: makes a value of the JSON of a payload, such as ``Order.model_validate``, and raises if that
      is none. Default: what kind says.
    encode: makes the JSON of a value. Default: dataclasses.asdict, or the value itself.

    The calls take a Client, or an AsyncClient: then what they return is awaited.
    """

    def __init__(
        self, name: str, kind: type[T], *, decode: Callable[[Any], T] | None = None, encode: Callable[[T], Any] | None = None,
    ) -> None:
        self.name = name
        self._decode: Callable[[Any], Any] = decode or (lambda payload: _decoded(kind, payload))
        self._encode: Callable[[Any], Any] = encode or _encoded

    def request(self, value: T, **more: Any) -> dict[str, Any]:
        """Makes an object for schedule_batch.

        more: the arguments of Client.schedule, such as delay or group.
        """
        return {"topic": self.name, "payload": self._encode(value), **more}

    @overload
    def schedule(self, client: Client, value: T, *, id: str | None = None, delay: Span | None = None, **more: Any) -> ScheduledTask: ...
    @overload
    def schedule(self, client: AsyncClient, value: T, *, id: str | None = None, delay: Span | None = None, **more: Any) -> Awaitable[ScheduledTask]: ...
    def schedule(self, client: Any, value: T, **more: Any) -> Any:
        """Has a task delivered that carries the value.

        more: id, delay and the other arguments of Client.schedule.

        Fails as Client.schedule does.
        """
        return client.schedule(**self.request(value, **more))

    @overload
    def replace(self, client: Client, value: T, *, id: str, delay: Span | None = None, **more: Any) -> ScheduledTask: ...
    @overload
    def replace(self, client: AsyncClient, value: T, *, id: str, delay: Span | None = None, **more: Any) -> Awaitable[ScheduledTask]: ...
    def replace(self, client: Any, value: T, **more: Any) -> Any:
        """Schedules like schedule, in place of the pending or ready task of the same id, if there is
        one. Fails as Client.replace does."""
        return client.replace(**self.request(value, **more))

    def handler(self, handle: Callable[[T, Delivery, Context], R]) -> Callable[[Delivery, Context], R]:
        """Makes the handler of a worker, which hands over the decoded payloads. It can decorate a
        function or a coroutine function. A payload that is missing or does not decode kills its task,
        which can be requeued."""
        def decoded(delivery: Delivery, context: Context) -> R:
            try:
                value = self.value(delivery)
            except ValueError as e:
                raise Kill(str(e)) from e
            return handle(value, delivery, context)
        return decoded

    @overload
    def worker(self, client: Client, handle: Callable[[T, Delivery, Context], object], **options: Any) -> Worker: ...
    @overload
    def worker(self, client: AsyncClient, handle: Callable[[T, Delivery, Context], Awaitable[object]], **options: Any) -> AsyncWorker: ...
    def worker(self, client: Any, handle: Any, **options: Any) -> Any:
        """Makes a worker of the topic with the handler of handle.

        options: those of AsyncWorker, such as concurrency.
        """
        make = Worker if isinstance(client, Client) else AsyncWorker
        return make(client, self.name, self.handler(handle), **options)

    def value(self, delivery: Delivery) -> T:
        """Decodes the payload of a delivery, for receivers that reserve. Raises ValueError if it is
        missing or does not decode."""
        try:
            return typing.cast(T, self._decode(delivery.get("payload", MISSING)))
        except Exception as e:
            raise ValueError(f"payload of {self.name}: {e}") from e


def _encoded(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _decoded(kind: Any, value: Any) -> Any:
    """Makes a value of a kind of what JSON has in its place."""
    if value is MISSING:
        raise ValueError("there is none")
    if kind is Any:
        return value
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in args:
            return None
        kinds = [one for one in args if one is not types.NoneType]
        if len(kinds) == 1:
            return _decoded(kinds[0], value)
    elif dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        if isinstance(value, dict):
            return _object(kind, value)
    elif origin is list and isinstance(value, list):
        return [_decoded(args[0], one) for one in value] if args else value
    elif origin is dict and isinstance(value, dict):
        return {name: _decoded(args[1], one) for name, one in value.items()} if args else value
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif kind in (str, int, bool) and type(value) is kind:
        return value
    elif kind not in (str, int, float, bool) and origin not in (list, dict):
        raise ValueError(f"{kind} needs a decode")
    raise ValueError(f"{value!r:.100} is no {getattr(kind, '__name__', kind)}")


def _object(kind: Any, value: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    if typing.is_typeddict(kind):
        # Not by __required_keys__ alone, which knows no NotRequired in annotations that are text.
        said = {name: typing.get_origin(hint) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
        names, needed = set(hints), {n for n in kind.__required_keys__ if said[n] is not typing.NotRequired}
    else:
        fields = [f for f in dataclasses.fields(kind) if f.init]
        names = {f.name for f in fields}
        needed = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
    if missing := sorted(needed - set(value)):
        raise ValueError(f"{kind.__name__} has no {', '.join(missing)}")
    return kind(**{name: _decoded(hints[name], one) for name, one in value.items() if name in names})
