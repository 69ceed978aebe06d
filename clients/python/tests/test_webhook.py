from __future__ import annotations

import base64
import http.server
import threading

import pytest

import lapse
from conftest import SECRET, until


def deliver(client: lapse.Client) -> tuple[dict[str, str], bytes]:
    """Has a task delivered to a receiver, and returns the request."""
    came: list[tuple[dict[str, str], bytes]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204)
            self.end_headers()
            came.append((dict(self.headers), body))

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as hook:
        thread = threading.Thread(target=hook.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        client.set_topic("hook", {"delivery": {"kind": "webhook", "url": f"http://127.0.0.1:{hook.server_port}/", "secret": "shop"}})
        client.schedule("hook", id="order.42", payload={"order": 42, "name": "Zoë"}, group="g")
        until(lambda: came)
        hook.shutdown()
        thread.join()
    return came[0]


def test_a_webhook_is_verified_and_a_changed_one_is_not(client: lapse.Client) -> None:
    headers, body = deliver(client)
    hook = lapse.verify_webhook(headers, body, SECRET)
    assert (hook.id, hook.json()["order"], hook.topic, hook.attempt, hook.group, hook.receipt) == ("order.42", 42, "hook", 1, "g", None)
    assert hook.due_at is not None and abs((hook.sent_at - hook.due_at).total_seconds()) < 60
    lower = {k.lower(): v for k, v in headers.items()}
    other = "whsec_" + base64.b64encode(b"1" * 32).decode()
    sent = int(lower["webhook-timestamp"])
    lapse.verify_webhook(lower, body, [other, SECRET], now=sent + 299)
    lapse.verify_webhook({**lower, "webhook-signature": "v2,x v1,é v1,AAAA " + lower["webhook-signature"]}, body, SECRET)
    for change, text, secrets, now in (
        ({}, body, other, sent), ({}, body + b" ", SECRET, sent), ({"webhook-id": "order.42"}, body, SECRET, sent),
        ({"webhook-timestamp": str(sent + 1)}, body, SECRET, sent), ({"webhook-timestamp": "soon"}, body, SECRET, sent),
        ({"webhook-signature": ""}, body, SECRET, sent), ({"webhook-signature": "v1,"}, body, SECRET, sent),
        ({}, body, SECRET, sent + 301), ({}, body, SECRET, sent - 301),
    ):
        with pytest.raises(lapse.WebhookError):
            lapse.verify_webhook({**lower, **change}, text, secrets, now=now)
    with pytest.raises(lapse.WebhookError):
        lapse.verify_webhook({}, body, SECRET)
    with pytest.raises(lapse.WebhookError):
        lapse.verify_webhook(lower, body, SECRET, now=sent + 11, tolerance=10)
    for wrong in ([], "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_%"):
        with pytest.raises(ValueError):
            lapse.verify_webhook(lower, body, wrong)
