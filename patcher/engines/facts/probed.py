"""Facts about the user's own builds, made by ``ckpt-patch engines probe``.

One file for each version, ``<cache>/facts/vllm/0.17.0.dev12.json``, with every part of the facts,
when they were made and from where. They are the user's own; still a file that was cut short, edited
or made by another version of this tool is refused rather than judged by.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, NoReturn

from patcher import __version__, outfile
from patcher.errors import UnreadableError, WriteError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Facts = Mapping[str, Any]

SCHEMA = "ckpt-patch/facts-probed@1"
HINT = "ckpt-patch engines probe"


def path(engine: str, version: str) -> Path:
    """Where the facts about this build are, or would be."""
    return _folder(engine) / f"{version}.json"


def exists(engine: str, version: str) -> bool:
    """Whether this very version was probed; nothing is read."""
    return path(engine, version).is_file()


def versions(engine: str) -> tuple[str, ...]:
    """Every version that was probed, oldest first."""
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415 - start-up time

    found = {}
    folder = _folder(engine)
    for name in os.listdir(folder) if folder.is_dir() else ():
        stem, ending = os.path.splitext(name)
        try:
            found[stem] = Version(stem)
        except InvalidVersion:  # not ours
            continue
        if ending != ".json":
            del found[stem]
    return tuple(sorted(found, key=found.__getitem__))


def save(engine: str, version: str, *, tree: str, date: str, parts: Mapping[str, Facts]) -> Path:
    """Keep the facts about a build, in place of older ones.

    Args:
        engine: its name.
        version: in PEP 440's normal form.
        tree: the folder that holds the engine's package; only its hash is kept.
        date: when they were made, ISO 8601.
        parts: name of the part -> facts.

    Raises:
        WriteError: the cache cannot be written.
    """
    head = {
        "schema": SCHEMA,
        "engine": engine,
        "version": version,
        "date": date,
        "tree_sha256": hashlib.sha256(os.fsencode(os.path.realpath(tree))).hexdigest(),
        "made_by": __version__,
        "sha256": _digest(parts),
    }
    file = path(engine, version)
    try:
        outfile.make_folder(file.parent)
    except OSError as error:
        raise WriteError(f"cannot make the folder: {error}", path=str(file.parent)) from error
    outfile.write(file, (json.dumps({**head, "parts": parts}, indent=1) + "\n").encode())
    return file


def load(engine: str, version: str) -> Mapping[str, Any]:
    """The whole file about a build: ``date``, ``tree_sha256``, ``parts`` and the rest.

    Raises:
        UnreadableError: there is none, or it is not as ``save`` left it.
    """
    file = path(engine, version)
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        _refuse(file, f"cannot be read: {error.strerror}")
    except (ValueError, RecursionError):
        _refuse(file, "is cut short, or was edited: not JSON")
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        _refuse(file, "does not hold facts about an engine")
    if found.get("made_by") != __version__:
        _refuse(file, "was made by another version of ckpt-patch")
    named = (found.get("engine"), found.get("version"))
    if named != (engine, version) or found.get("sha256") != _digest(found.get("parts")):
        _refuse(file, "was edited since it was made")
    return found


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _refuse(file: Path, why: str) -> NoReturn:
    raise UnreadableError(f"this file of probed facts {why}", path=str(file), hint=HINT)


def _folder(engine: str) -> Path:
    return outfile.cache_folder() / "facts" / engine
