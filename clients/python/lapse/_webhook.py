"""Receivers of webhooks."""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MAX_SIGNATURES = 20


class WebhookError(Exception):
    """The request is not from a holder of the secret, or is too old. Answer it 401."""


@dataclass(frozen=True)
class Webhook:
    """A request of Lapse that was verified."""

    #: The task's id. It is signed, as are sent_at and body.
    id: str
    #: When the attempt was made.
    sent_at: datetime.datetime
    #: The task's payload byte for byte.
    body: bytes
    #: What follows comes from headers that are not signed: TLS alone protects them.
    topic: str | None
    attempt: int | None
    due_at: datetime.datetime | None
    group: str | None
    #: In async mode: what settles the delivery, by ack, release, extend or bury.
    receipt: str | None
    lease_until: datetime.datetime | None

    def json(self) -> Any:
        """Reads the body as JSON."""
        return json.loads(self.body)


def verify_webhook(
    headers: Mapping[str, str], body: bytes, secrets: str | Sequence[str], *, tolerance: float = 300, now: float | None = None,
) -> Webhook:
    """Verifies a request by Standard Webhooks.

    It raises a WebhookError if no signature is one of the secrets', or the timestamp is off by more
    than the tolerance, in seconds. Signatures are compared in constant time.

    headers: of the request, with names in whatever case.
    body: as it came: not parsed and encoded again.
    secrets: "whsec_..." texts: one, or several while a secret is being changed.
    now: the present in seconds, for tests.
    """
    h = {name.lower(): value for name, value in headers.items()}
    id, timestamp, signatures = (h.get("webhook-" + part, "") for part in ("id", "timestamp", "signature"))
    if not (id and timestamp and signatures):
        raise WebhookError("a header of the signature is missing")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise WebhookError("the timestamp is no number of seconds")
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance:
        raise WebhookError("the timestamp is too far from the present")
    given = [s[3:].encode("latin-1", "replace") for s in signatures.split(" ")[:_MAX_SIGNATURES] if s.startswith("v1,")]
    signed = f"{id}.{timestamp}.".encode() + body
    genuine = False
    for key in _keys(secrets):
        want = base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
        for signature in given:
            genuine = hmac.compare_digest(want, signature) or genuine
    if not genuine:
        raise WebhookError("no signature is valid")
    attempt = h.get("lapse-attempt")
    return Webhook(
        id=id.replace("%2E", "."),  # an id is signed without full stops
        sent_at=datetime.datetime.fromtimestamp(int(timestamp), datetime.timezone.utc), body=body, topic=h.get("lapse-topic"),
        attempt=int(attempt) if attempt and attempt.isdigit() else None, due_at=_time(h.get("lapse-due")), group=h.get("lapse-group"),
        receipt=h.get("lapse-receipt"), lease_until=_time(h.get("lapse-lease-until")))


def _keys(secrets: str | Sequence[str]) -> list[bytes]:
    keys = []
    for secret in [secrets] if isinstance(secrets, str) else secrets:
        try:
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            key = b""
        if not key or not secret.startswith("whsec_"):
            raise ValueError("a secret must be whsec_ and base64")
        keys.append(key)
    if not keys:
        raise ValueError("secrets must have a secret")
    return keys


def _time(text: str | None) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
