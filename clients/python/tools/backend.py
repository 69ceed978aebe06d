"""Builds the wheel (PEP 517): pip runs this, and needs neither an index nor another package.

The package is a folder of modules without dependencies, so that a wheel is an archive of them and
of what pyproject.toml says. The same files make the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import tomllib
import zipfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parents[1]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Writes the wheel into a directory, and returns its name."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
    stem = f"{project['name']}-{project['version']}"
    files = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in (HERE / "lapse").iterdir() if path.suffix in (".py", ".typed")}
    info = f"{stem}.dist-info/"
    files[info + "METADATA"] = metadata(project).encode()
    files[info + "WHEEL"] = b"Wheel-Version: 1.0\nGenerator: lapse\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    licence = HERE.parents[1] / "LICENSE"  # of the repository; a copy of this folder alone has none
    if licence.exists():
        files[info + "LICENSE"] = licence.read_bytes()
    record = "".join(f"{name},sha256={digest(text)},{len(text)}\n" for name, text in sorted(files.items()))
    files[info + "RECORD"] = f"{record}{info}RECORD,,\n".encode()
    wheel = pathlib.Path(wheel_directory, f"{stem}-py3-none-any.whl")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files, key=lambda name: (name.startswith(info), name)):  # what is about the package comes last
            entry = zipfile.ZipInfo(name)  # of 1980
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return wheel.name


def metadata(project: dict[str, Any]) -> str:
    """Returns the core metadata. What it does not know is an error, so that nothing is left out."""
    known = {"name", "version", "description", "readme", "requires-python", "license", "classifiers", "urls", "dependencies"}
    if project.keys() - known or project["dependencies"]:
        raise ValueError(f"tools/backend.py does not write all of {sorted(project)}")
    fields = [
        ("Metadata-Version", "2.1"), ("Name", project["name"]), ("Version", project["version"]), ("Summary", project["description"]),
        ("License", project["license"]["text"]), ("Requires-Python", project["requires-python"]),
        *(("Classifier", one) for one in project["classifiers"]),
        *(("Project-URL", f"{name}, {url}") for name, url in project["urls"].items()),
        ("Description-Content-Type", "text/markdown"),
    ]
    return "".join(f"{name}: {value}\n" for name, value in fields) + "\n" + (HERE / project["readme"]).read_text("utf-8")


def digest(text: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
