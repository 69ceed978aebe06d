"""How handlers say what becomes of their deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._core import Span, seconds

_LONGEST_REASON = 1024
_TEN_YEARS = 3650 * 86400.0


class Kill(Exception):
    """Raised by a handler: another attempt cannot mend this, and the task becomes dead."""


class RetryAfter(Exception):
    """Raised by a handler: the next attempt starts after the delay, in place of the topic's backoff."""

    def __init__(self, delay: Span, reason: str = "") -> None:
        super().__init__(reason or "the handler asks for another attempt")
        self.delay = min(max(seconds("delay", delay), 0.0), _TEN_YEARS)


@dataclass(frozen=True)
class Judgement:
    """How a delivery is to be settled."""

    verb: Literal["ack", "give_back", "release", "bury"]
    reason: str | None = None
    delay: float | None = None  # of release, in seconds; None: the topic's backoff


def judge(error: BaseException, on_failure: Literal["release", "bury"]) -> Judgement:
    """Reads a handler's failure."""
    try:
        reason = str(error) or type(error).__name__
    except BaseException:
        reason = type(error).__name__
    reason = reason[:_LONGEST_REASON].encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
    if isinstance(error, Kill):
        return Judgement("bury", reason)
    if isinstance(error, RetryAfter):
        delay = getattr(error, "delay", None)
        valid = isinstance(delay, (int, float)) and 0 <= delay <= _TEN_YEARS  # not so of nan
        return Judgement("release", reason, float(delay) if valid else None)
    return Judgement(on_failure, reason)
