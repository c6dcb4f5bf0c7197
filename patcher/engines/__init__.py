"""What each inference engine makes of a checkpoint, release by release.

The one door to the engine modules: ``check`` asks here by engine name and never imports one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from patcher.engines import facts
from patcher.engines.base import Answer

if TYPE_CHECKING:
    from patcher.engines.base import Documents, Launch
    from patcher.metadata.model import Model

#: engine name -> how its makers write it.
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


def releases(engine: str) -> tuple[str, ...]:
    """The releases with packaged facts, oldest first; empty where there are none yet."""
    return facts.releases(engine)


def later(engine: str, release: str) -> tuple[str, ...]:
    """The packaged releases after ``release``, which may be a build that the user probed."""
    known = releases(engine)
    if release in known:
        return known[known.index(release) + 1 :]
    from packaging.version import Version  # noqa: PLC0415 - start-up time

    return tuple(each for each in known if Version(each) > Version(release))


def nearest(engine: str, version: str) -> tuple[str, str | None]:
    """The release whose facts answer for ``version``, and a sentence when it is another one.

    Raises:
        UnreadableError: no release has facts that could stand for this version.
    """
    return facts.nearest(engine, version)


def answer(engine: str, release: str, documents: Documents, model: Model, launch: Launch) -> Answer:
    """What ``release`` of ``engine`` does with these files on this GPU."""
    if not releases(engine):
        return Answer(None, unknown=f"there are no facts about {NAMES[engine]} in this version")
    module = import_module(f"patcher.engines.{engine}")
    result: Answer = module.answer(release, documents, model, launch)
    return result


def flag_values(engine: str, release: str) -> tuple[str, ...]:
    """The values that the release's KV-cache dtype flag takes; ``auto`` among them."""
    module = import_module(f"patcher.engines.{engine}")
    values: tuple[str, ...] = module.flag_values(release)
    return values
