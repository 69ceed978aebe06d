"""Runs the programs of docs/clients.md as they stand."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading

import lapse
from conftest import SECRET, Server, free_port, until

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/clients.md").read_text()
PROGRAMS = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", PAGE, re.M | re.S))


def start(dir: pathlib.Path, server: Server, name: str, **env: str) -> subprocess.Popen[str]:
    (dir / name).write_text(PROGRAMS[name])
    path = str(ROOT / "clients/python")
    return subprocess.Popen([sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", name], cwd=dir, env={**os.environ, "LAPSE_URL": server.url, "PYTHONPATH": path, **env},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed)


def heed() -> None:
    """Has a program heed Ctrl-C, which it does not if a shell in the background started the tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ends(dir: pathlib.Path, server: Server, name: str) -> str:
    """Runs a program that ends by itself."""
    with start(dir, server, name) as p:
        out, _ = p.communicate(timeout=60)
    assert p.returncode == 0, out
    return out


def stops(dir: pathlib.Path, server: Server, name: str, lines: list[str], by: signal.Signals = signal.SIGTERM, **env: str) -> str:
    """Runs a program until it has said all lines, and stops it. It says nothing more."""
    said: list[str] = []
    with start(dir, server, name, **env) as p:
        assert p.stdout is not None
        out = p.stdout
        reader = threading.Thread(target=lambda: said.extend(iter(out.readline, "")))
        reader.start()
        until(lambda: p.poll() is not None or all(line + "\n" in said for line in lines), 60)
        p.send_signal(by)
        try:
            p.wait(30)
        finally:
            p.kill()
        reader.join()
    assert p.returncode == 0 and all(line + "\n" in said for line in lines), said
    return "".join(said)


def test_every_program_is_here() -> None:
    assert sorted(set(PROGRAMS) - {"readme.py"}) == ["aio.py", "calls.py", "events.py", "failures.py", "hook.py", "mail.py", "send.py", "typed.py", "worker.py"]
    assert len(re.findall(r"^```python$", PAGE, re.M)) == 9


def test_getting_started(tmp_path: pathlib.Path, server: Server) -> None:
    assert ends(tmp_path, server, "send.py").startswith("order-43 is due at 20")
    said = "cancel {'order': 43} attempt 1"
    assert stops(tmp_path, server, "worker.py", [said]) == said + "\n"
    assert ends(tmp_path, server, "send.py").startswith("order-43 is due at 20")
    assert stops(tmp_path, server, "worker.py", [said], by=signal.SIGINT) == said + "\n"  # Ctrl-C, without a traceback
    assert ends(tmp_path, server, "aio.py") == "remind {'coupon': 7}\n"
    assert stops(tmp_path, server, "typed.py", ["cancel 46 attempt 1"], by=signal.SIGINT) == "cancel 46 attempt 1\n"


def test_the_readme(tmp_path: pathlib.Path, server: Server) -> None:
    text = re.search(r"^```python\n(.*?)^```", (ROOT / "clients/python/README.md").read_text(), re.M | re.S)
    assert text is not None
    PROGRAMS["readme.py"] = text[1].replace("http://127.0.0.1:7480", server.url).replace('"30m"', '"1ms"')
    said = "cancel 42"
    assert stops(tmp_path, server, "readme.py", [said], by=signal.SIGINT, PYTHONUNBUFFERED="1") == said + "\n"


def test_calls(tmp_path: pathlib.Path, server: Server) -> None:
    assert ends(tmp_path, server, "calls.py") == "2 tasks\ncoupon-8.day pending\ncoupon-8.close pending\n{'cancelled': 2, 'delivering': []}\n"
    assert ends(tmp_path, server, "events.py") == "scheduled\n"
    assert ends(tmp_path, server, "failures.py") == "too late: unknown or finished: order-unknown\n"


def test_worker(tmp_path: pathlib.Path, server: Server) -> None:
    out = stops(tmp_path, server, "mail.py", ["sent to zoe@shop.example False", "post-2 no address", "post-3 the mailbox is full"])
    assert "acked=1, released=1, buried=1" in out


def test_webhook(tmp_path: pathlib.Path, server: Server, client: lapse.Client) -> None:
    port = free_port()
    command = re.search(r"^lapse (topics set .*)$", PAGE, re.M)
    assert command is not None
    args = shlex.split(command[1].replace(":8000/", f":{port}/"))
    subprocess.run([os.environ["LAPSE_BIN"], *args, "--server", server.url], check=True, capture_output=True, timeout=30)
    client.change_topic("order.expired", {"retry": {"min_backoff": "50ms"}})
    client.schedule("order.expired", id="order.44", payload={"order": 44})
    lines = ["cancel order.44 {'order': 44}"]
    stops(tmp_path, server, "hook.py", lines, PORT=str(port), LAPSE_SECRETS="whsec_" + "A" * 32 + " " + SECRET)
