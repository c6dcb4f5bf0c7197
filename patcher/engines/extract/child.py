"""``python -m patcher.engines.extract.child vllm TREE VERSION``: facts as JSON, within limits.

The process in which a user's build is asked: it may use so much memory and no more, what the
engine's code prints does not mix with the answer, and a question that fails is told by the name of
the definition that it was about. The parent (engines/probing.py) watches the clock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.parts import extract
from patcher.engines.extract.source import DirectorySource
from patcher.errors import CkptPatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMORY = 2 << 30
_HERE = os.path.dirname(os.path.abspath(__file__))


def main(arguments: Sequence[str]) -> int:
    """Print ``{"parts": ...}`` or ``{"error": "..."}``."""
    engine, tree, version = arguments
    limit_memory()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer: dict[str, Any] = {"parts": extract(engine, DirectorySource(tree), version)}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the engine's code may raise anything
        answer = {"error": said(error, engine)}
    json.dump(answer, sys.stdout)
    return 0


def limit_memory() -> None:
    """No more address space than MEMORY, where the system has such a limit."""
    import resource  # noqa: PLC0415 - POSIX only, like the rest of the package; and not at import

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def said(error: BaseException, package: str) -> str:
    """One sentence: what went wrong, asking what, in which definition of the engine."""
    if isinstance(error, MemoryError):
        return f"its code wants more than {MEMORY >> 30} GB of memory"
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, CkptPatchError):
        text = error.message
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.dirname(frame.filename) == _HERE]
    theirs = [frame for frame in frames if frame.filename.startswith(f"{package}/")]
    asking = next((f for f in reversed(own) if not _is_machinery(f.filename)), None)
    where = [f"in {f.filename}:{f.lineno} {f.name}" for f in theirs[-1:]]
    where += [f"asked by {os.path.basename(asking.filename)} {asking.name}"] if asking else []
    return f"{text} ({', '.join(where)})" if where else text


def _is_machinery(path: str) -> bool:
    return os.path.basename(path) in {
        "slicer.py",
        "shims.py",
        "source.py",
        "explore.py",
        "index.py",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
