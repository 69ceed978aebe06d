"""Failures of calls."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

_NOTHING_HAPPENED = frozenset({
    "unreachable", "overloaded", "quota", "ledger_unavailable", "replaying", "shutting_down",
    "starting", "draining", "node_unavailable", "busy",
})
_LONGEST_TEXT = 1024


class LapseError(Exception):
    """A call that failed.

    Compare ``code``: the last part of the problem's type, such as ``"not_found"``, ``"id_taken"``
    or ``"invalid"``. The client has some of its own: ``"unreachable"`` (nothing has happened),
    ``"outcome_unknown"`` (which the server answers too: it may have happened), ``"bad_answer"``
    (what came is no answer of Lapse); and of workers ``"lease_lost"``, ``"stopped"`` and
    ``"unsettled"``.
    """

    def __init__(
        self, code: str, title: str, *, type: str = "about:blank", status: int = 0, detail: str = "",
        errors: Sequence[Mapping[str, str]] = (), id: str | None = None, ids: Sequence[str] | None = None,
        done: int | None = None, recorded: bool | None = None, request_id: str | None = None,
        retry_after: float = 0, retryable: bool = False,
    ) -> None:
        self.code = code
        self.title = title
        #: The problem's type, such as "/problems/not_found"; "about:blank" if none was answered.
        self.type = type
        #: The HTTP status; 0 without an answer.
        self.status = status
        self.detail = detail
        #: The fields that are wrong: "field" and "problem" of each.
        self.errors = list(errors)
        #: The id, or the ids of a batch, with which repeating the call is safe.
        self.id = id
        self.ids = None if ids is None else list(ids)
        #: How many tasks were dealt with before the failure, where a call is done in pieces.
        self.done = done
        self.recorded = recorded
        self.request_id = request_id
        #: Seconds that the server asks to wait; 0 if it does not say.
        self.retry_after = retry_after
        #: The same call may succeed later, and repeating it is safe.
        self.retryable = retryable
        super().__init__(self._message())

    @property
    def outcome_unknown(self) -> bool:
        """Whether the call may have been carried out although it failed."""
        return self.code == "outcome_unknown"

    @property
    def harmless(self) -> bool:
        """Whether nothing has happened, and it may be otherwise later."""
        return self.code in _NOTHING_HAPPENED

    def _message(self) -> str:
        if self.errors:
            return f"{self.title}: " + "; ".join(f"{e.get('field')} {e.get('problem')}" for e in self.errors)
        title, detail = self.title.lower(), self.detail.lower()
        if not detail or detail == title:
            return self.title
        return self.detail if detail.startswith(title) else f"{self.title}: {self.detail}"


def problem_of(status: int, retry_after: str | None, body: bytes, again: bool) -> LapseError:
    """Reads an answer that is no success. again: a repeated call might have its effect twice."""
    wait = _seconds(retry_after)
    try:
        p: Any = json.loads(body)
    except ValueError:
        p = None
    if not isinstance(p, dict) or not isinstance(p.get("type"), str):
        # It comes from another server, such as a proxy. That may have passed the request on before
        # its connection broke.
        code = "overloaded" if status == 429 else "outcome_unknown" if status >= 500 else "bad_answer"
        text = body[:_LONGEST_TEXT].decode("utf-8", "replace")
        return LapseError(code, f"HTTP status {status}", status=status, detail=text, retry_after=wait,
                          retryable=code == "overloaded" or code == "outcome_unknown" and not again)
    code = p["type"].rpartition("/")[2]
    if code == "internal":
        code = "outcome_unknown"
    return LapseError(
        code, str(p.get("title", "")), type=p["type"], status=status, detail=str(p.get("detail", "")),
        errors=p.get("errors") or (), id=p.get("id"), ids=p.get("ids"), done=p.get("done"),
        recorded=p.get("recorded"), request_id=p.get("request_id"), retry_after=wait,
        retryable=code in _NOTHING_HAPPENED or code == "outcome_unknown" and not again)


def _seconds(text: str | None) -> float:
    if not text:
        return 0
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - time.time(), 0)
    except ValueError:
        return 0
