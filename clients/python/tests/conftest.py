"""Real servers, and a proxy that treats requests as it is told."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import lapse  # noqa: E402

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TOKEN = "lapse_XX7RCUWAECNJQHESSUBNYJYYNU"


class Server:
    """A real server, with a ledger of its own."""

    def __init__(self, dir: pathlib.Path, *flags: str) -> None:
        binary = os.environ.get("LAPSE_BIN")
        assert binary, "LAPSE_BIN must name the server's program"
        (dir / "secrets.yaml").write_text(f"shop: [{SECRET}]\n")
        (dir / "secrets.yaml").chmod(0o600)
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        (dir / "tokens.yaml").write_text(f'- {{name: shop, scopes: [schedule, receive], sha256: "{digest}"}}\n')
        (dir / "tokens.yaml").chmod(0o600)
        self._args = [binary, "serve", "--data", str(dir / "data"), "--webhook-secret-file", str(dir / "secrets.yaml"), *flags]
        self._log = dir / "log"
        self.url = ""
        self._start("127.0.0.1:0")

    def _start(self, listen: str) -> None:
        with self._log.open("w") as log:
            self._process = subprocess.Popen([*self._args, "--listen", listen], stdout=log, stderr=log)
        while not (m := re.search(r"serves on (http:\S+)", self._log.read_text())):
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.01)
        self.url = m[1]

    def crash(self) -> None:
        """Kills the process, and starts another one on the same address."""
        self.stop()
        self._start(self.url.removeprefix("http://"))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


Fate = Any  # "pass", "lose" (pass on, and lose the answer), "hang", or (status, headers, body)


class Proxy:
    """A proxy in front of a server."""

    def __init__(self, target: str) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.fate: Callable[[str, int], Fate] = lambda path, nth: "pass"
        self.connections = 0
        self.ending = threading.Event()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.seen.append((self.command, self.path, body))
                fate = proxy.fate(self.path, len(proxy.seen))
                if fate == "hang":
                    proxy.ending.wait(30)
                    self.close_connection = True
                    return
                if isinstance(fate, tuple):
                    self.answer(*fate)
                    return
                onward = http.client.HTTPConnection(target.removeprefix("http://"))
                onward.request(self.command, self.path, body, dict(self.headers))
                answer = onward.getresponse()
                text = answer.read()
                onward.close()
                if fate == "lose":
                    self.close_connection = True
                    return
                self.answer(answer.status, {k: v for k, v in answer.getheaders() if k.lower() not in ("content-length", "date")}, text)

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

            def log_message(self, *args: object) -> None:
                pass

            def handle(self) -> None:
                proxy.connections += 1
                try:
                    super().handle()
                except OSError:
                    pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self.ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Looks again until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    s = Server(tmp_path_factory.mktemp("lapse"))
    yield s
    s.stop()


@pytest.fixture
def client(server: Server) -> Iterator[lapse.Client]:
    with lapse.Client(server.url) as c:
        yield c


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    p = Proxy(server.url)
    yield p
    p.stop()
