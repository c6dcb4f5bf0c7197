"""All facts about one release of any engine: what a refresh and a probe have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patcher.engines.extract.source import wheel_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from patcher.engines.extract.source import Source

    Parts = dict[str, dict[str, Any]]


def _vllm(source: Source, version: str) -> Parts:
    from patcher.engines.extract import vllm_resolution, vllm_selection  # noqa: PLC0415 - one engine

    return {
        "resolution": vllm_resolution.extract(source, version),
        "selection": vllm_selection.facts(source, version),
    }


def _sglang(source: Source, version: str) -> Parts:
    from patcher.engines.extract import sglang  # noqa: PLC0415 - one engine

    return {"rules": sglang.extract(version, source)}


#: The engines whose code can be run in pieces.
EXTRACTORS: dict[str, Callable[[Source, str], Parts]] = {"vllm": _vllm, "sglang": _sglang}


def extract(engine: str, source: Source, version: str) -> Parts:
    """Name of the part -> facts, as they are stored.

    Raises:
        BaseException: whatever the release's code or the questions to it raised; see child.py.
    """
    return EXTRACTORS[engine](source, version)


def wheel(engine: str, version: str) -> Source:
    """The release on PyPI.

    Raises:
        UnreadableError: there is no such release, or PyPI cannot be reached.
    """
    if engine == "sglang":
        from patcher.engines.extract import sglang  # noqa: PLC0415 - one engine

        return sglang.wheel(version)
    return wheel_source(engine, version)
