from __future__ import annotations

import asyncio
import dataclasses
import threading
import typing
from typing import NotRequired, TypedDict

import pytest

import lapse
from conftest import Server, until


@dataclasses.dataclass
class Order:
    number: int
    lines: list[str] = dataclasses.field(default_factory=list)
    coupon: str | None = None


@pytest.fixture
def topic() -> str:
    return "typed"


def test_a_topic_with_a_type(client: lapse.Client, server: Server, topic: str) -> None:
    orders = lapse.Topic(topic, Order)
    assert orders.schedule(client, Order(1), id=topic, delay="1h")["payload"] == {"number": 1, "lines": [], "coupon": None}
    assert not orders.replace(client, Order(2, ["tea"]), id=topic)["created"]
    client.schedule_batch([orders.request(Order(3), group="g"), {"topic": topic, "payload": {"number": 4, "more": 1}},
                           {"id": topic + "-odd", "topic": topic, "payload": {"number": "5"}}, {"id": topic + "-none", "topic": topic}])
    seen: list[Order] = []

    @orders.handler
    def sync(order: Order, delivery: lapse.types.Delivery, context: lapse.Context) -> None:
        assert delivery["topic"] == topic and not context.ended.is_set()
        seen.append(order)

    worker = lapse.Worker(client, orders.name, sync, on_error=lambda error, delivery: None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: worker.stats.acked == 3 and worker.stats.buried == 2)
    worker.stop()
    thread.join()
    assert sorted(seen, key=lambda order: order.number) == [Order(2, ["tea"]), Order(3), Order(4)]
    assert client.get(topic + "-odd")["last_error"] == f"payload of {topic}: '5' is no int"
    assert client.get(topic + "-none")["last_error"] == f"payload of {topic}: there is none"

    async def main() -> None:
        async with lapse.AsyncClient(server.url) as c:
            assert not (await orders.replace(c, Order(7), id=topic + "-7"))["created"] is None
            await orders.schedule(c, Order(6))
            handled = asyncio.Event()

            async def handle(order: Order, delivery: lapse.types.Delivery, context: lapse.Context) -> None:
                seen.append(order)
                if len(seen) == 5:
                    handled.set()

            worker = orders.worker(c, handle)
            running = asyncio.create_task(worker.run())
            await handled.wait()
            await worker.stop()
            await running

    asyncio.run(main())
    assert {order.number for order in seen[3:]} == {6, 7}


class Coupon(TypedDict):
    code: str
    left: NotRequired[int]


@dataclasses.dataclass
class Basket:
    orders: dict[str, Order]
    coupons: list[Coupon]
    price: float | None


@pytest.mark.parametrize(("kind", "payload", "value"), [
    (Basket, {"orders": {"a": {"number": 1}}, "coupons": [{"code": "x", "other": 1}], "price": 2}, Basket({"a": Order(1)}, [{"code": "x"}], 2.0)),
    (Basket, {"orders": {}, "coupons": [{"left": 1}], "price": None}, "Coupon has no code"),
    (Basket, {"orders": [], "coupons": [], "price": 1}, "[] is no dict"), (Order, {}, "Order has no number"), (Order, "text", "'text' is no Order"),
    (bool, 1, "1 is no bool"), (int, True, "True is no int"), (float, 1, 1.0), (str, None, "None is no str"), (typing.Any, None, None),
    (bytes, "x", "<class 'bytes'> needs a decode"), (Order, {"number": 1, "coupon": None, "lines": [1]}, "1 is no str"),
])
def test_kinds_of_payloads(kind: typing.Any, payload: object, value: object) -> None:
    delivery = typing.cast(lapse.types.Delivery, {"payload": payload})
    try:
        assert lapse.Topic("t", kind).value(delivery) == value
    except ValueError as e:
        assert str(e) == f"payload of t: {value}"
    assert lapse.Topic("t", bytes, decode=lambda text: text.encode(), encode=bytes.decode).request(b"x") == {"topic": "t", "payload": "x"}
