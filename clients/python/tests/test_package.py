"""Builds the package as pip does, but for the wheel, which is an archive of the same files."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parents[1]


def test_the_package_is_built(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("setuptools")
    source = tmp_path / "python"
    shutil.copytree(HERE, source, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    build = [sys.executable, "-c", "import setuptools; setuptools.setup()", "build", "--build-lib", "../built"]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    built = sorted(str(path.relative_to(tmp_path / "built")) for path in (tmp_path / "built").rglob("*") if path.is_file())
    assert built == sorted(str(path.relative_to(source)) for path in (source / "lapse").rglob("*") if path.is_file())
    assert "lapse/py.typed" in built
    used = subprocess.run([sys.executable, "-c", "import lapse; print(lapse.__file__)"], cwd=tmp_path / "built", capture_output=True, text=True)
    assert used.stdout.strip() == str(tmp_path / "built/lapse/__init__.py"), used.stderr
