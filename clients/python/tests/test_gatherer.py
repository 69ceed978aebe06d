from __future__ import annotations

import asyncio

from lapse._gatherer import Gatherer


def test_a_value_that_is_added_as_the_last_call_ends() -> None:
    """It is taken, although the task of that call has callbacks still to run."""
    taken: list[list[int]] = []

    async def main() -> None:
        async def call(batch: list[int]) -> None:
            taken.append(batch)
            if batch == [1]:
                asyncio.get_running_loop().call_soon(gatherer.add, 2)

        gatherer = Gatherer[int](1, 10, call)
        gatherer.add(1)
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert taken == [[1], [2]]


def test_idle_waits_for_all_values() -> None:
    taken: list[int] = []

    async def main() -> None:
        async def call(batch: list[int]) -> None:
            await asyncio.sleep(0.001)
            taken.extend(batch)

        gatherer = Gatherer[int](2, 3, call)
        for i in range(20):
            gatherer.add(i)
        await gatherer.idle()

    asyncio.run(main())
    assert sorted(taken) == list(range(20))


def test_a_call_that_fails_holds_nothing_up() -> None:
    taken: list[list[int]] = []

    async def main() -> None:
        async def call(batch: list[int]) -> None:
            if batch == [1]:
                gatherer.add(2)
                raise RuntimeError("broken")
            taken.append(batch)

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        gatherer = Gatherer[int](1, 10, call)
        gatherer.add(1)
        await gatherer.idle()

    asyncio.run(main())
    assert taken == [[2]]


def test_a_value_after_the_end_is_dropped() -> None:
    taken: list[list[int]] = []

    async def main() -> None:
        async def call(batch: list[int]) -> None:
            taken.append(batch)
            await asyncio.sleep(60)

        gatherer = Gatherer[int](1, 10, call)
        gatherer.add(1)
        await asyncio.sleep(0.001)
        asyncio.get_running_loop().call_soon(gatherer.add, 2)
        await gatherer.cancel()

    asyncio.run(main())
    assert taken == [[1]]
