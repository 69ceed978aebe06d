"""Client of Lapse, the durable deadline scheduler.

Client and Worker block; AsyncClient and AsyncWorker are for asyncio. Topic has the type of what
tasks carry. Nothing but the standard library is needed. The guide is docs/clients.md in the
repository of Lapse.
"""

from . import types
from ._aclient import AsyncClient
from ._ahttp import AsyncEvents
from ._client import Client
from ._core import RedrivenTopic, Repetition, Span, Time, new_id
from ._errors import LapseError
from ._http import Events
from ._judgement import Kill, RetryAfter
from ._run import Context, WorkerStats
from ._threads import Worker
from ._topic import Topic
from ._webhook import Webhook, WebhookError, verify_webhook
from ._worker import AsyncWorker

__all__ = [
    "AsyncClient", "AsyncEvents", "AsyncWorker", "Client", "Context", "Events", "Kill", "LapseError", "RedrivenTopic", "Repetition", "RetryAfter",
    "Span", "Time", "Topic", "Webhook", "WebhookError", "Worker", "WorkerStats", "new_id", "types", "verify_webhook",
]
