"""Installs the package as users do, without an index."""

from __future__ import annotations

import inspect
import pathlib
import re
import subprocess
import sys

import lapse
import pytest

HERE = pathlib.Path(__file__).resolve().parents[1]


def test_the_package_is_installed(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pip")
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--no-index", "--target", str(tmp_path)]
    done = subprocess.run([*pip, str(HERE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    installed = sorted(path.name for path in (tmp_path / "lapse").iterdir() if path.name != "__pycache__")
    assert installed == sorted(path.name for path in (HERE / "lapse").iterdir() if path.name != "__pycache__")
    assert "py.typed" in installed
    show = "import importlib.metadata as m, lapse; print(lapse.__file__, m.version('lapse'), m.metadata('lapse')['Requires-Python'])"
    used = subprocess.run([sys.executable, "-c", show], cwd=tmp_path, capture_output=True, text=True)
    assert used.stdout.split() == [str(tmp_path / "lapse/__init__.py"), "0.0.0", ">=3.11"], used.stderr


def test_help_shows_what_is_for_users() -> None:
    silent = []
    for name in lapse.__all__:
        value = getattr(lapse, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            of = {name: value, **{f"{name}.{m}": f for m, f in vars(value).items() if not m.startswith("_") and (inspect.isfunction(f) or isinstance(f, property))}}
            silent += [n for n, one in of.items() if not inspect.getdoc(one)]
    assert not silent
    named = {code for f in vars(lapse.Client).values() for told in re.findall(r"[Ff]ails[^.]*", inspect.getdoc(f) or "") for code in re.findall(r'"(\w+_?\w*)"', told)}
    told = set(re.findall(r"^## `/problems/(\w+)`", (HERE.parents[1] / "docs/problems.md").read_text(), re.M))
    assert len(named) > 15 and named <= told, named - told
    assert "due_at: The deadline." in (inspect.getdoc(lapse.types.Task) or "")
