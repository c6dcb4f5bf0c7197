"""The support table of an engine release: which attention backend runs which KV-cache dtype where.

No checkpoint is needed: the rows stand for models that have a kind of attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher import engines, gpus
from patcher.errors import UnreadableError, UsageError
from patcher.matrix import sglang, vllm

if TYPE_CHECKING:
    from patcher.matrix.sglang import SglangRow
    from patcher.matrix.vllm import VllmRow

SCHEMA = "ckpt-patch/matrix@1"
_ENGINES = {"vllm": vllm, "sglang": sglang}


class Matrix(Struct, frozen=True):
    """The table of one release.

    Attributes:
        version: as it was asked for.
        facts_version: the release whose facts answer.
        attention_backend: the backend asked for at launch, if any.
        notes: sentences for the reader, such as which facts were borrowed.
        rows: GPU by GPU.
    """

    engine: str
    version: str
    facts_version: str
    attention_backend: str | None
    notes: tuple[str, ...]
    rows: tuple[VllmRow | SglangRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document (design section 6)."""
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "version": self.version,
            "facts_version": self.facts_version,
            "attention_backend": self.attention_backend,
            "notes": list(self.notes),
            "rows": [row.to_dict() for row in self.rows],
        }


def matrix(
    engine: str,
    version: str | None = None,
    *,
    on: tuple[gpus.Gpu, ...] = (),
    attention_backend: str | None = None,
) -> Matrix:
    """The support table of a release.

    Args:
        engine: ``"vllm"`` or ``"sglang"``.
        version: of the release; the newest known one if it is not given.
        on: the GPUs; all that the facts cover if there are none.
        attention_backend: the backend asked for at launch.

    Raises:
        UsageError: the release has no such attention backend.
        UnreadableError: there are no facts about the engine's backends, the release or a GPU.
    """
    if engine not in _ENGINES:
        raise UnreadableError(
            f"which attention backends {engines.NAMES[engine]} selects is not known",
            hint=f"known: {', '.join(_ENGINES)}",
        )
    release, note = _release(engine, version)
    table = _ENGINES[engine]
    _check_backend(engine, release, attention_backend, table.backends(release))
    covered = _covered(engine, release, on, table.covered(release))
    return Matrix(
        engine=engine,
        version=version or release,
        facts_version=release,
        attention_backend=attention_backend,
        notes=(note,) if note else (),
        rows=tuple(row for gpu in covered for row in table.rows(release, gpu, attention_backend)),
    )


def _release(engine: str, version: str | None) -> tuple[str, str | None]:
    known = engines.releases(engine)
    if version is None:
        return known[-1], f"no version was named; {known[-1]} is the newest release with facts"
    try:
        return engines.nearest(engine, version)
    except UnreadableError as error:
        raise UnreadableError(error.message, hint=f"known: {', '.join(known)}") from error


def _check_backend(engine: str, release: str, name: str | None, known: tuple[str, ...]) -> None:
    if name is not None and name not in known:
        raise UsageError(
            f"{engines.NAMES[engine]} {release} has no attention backend {name[:40]!r}",
            hint=f"known: {', '.join(known)}",
        )


def _covered(
    engine: str, release: str, asked: tuple[gpus.Gpu, ...], names: tuple[str, ...]
) -> tuple[gpus.Gpu, ...]:
    """The GPUs that were asked for, each once, in the order of ``gpus.gpus()``."""
    for gpu in asked:
        if gpu.name not in names:
            raise UnreadableError(
                f"which attention backends {engines.NAMES[engine]} {release} selects on {gpu.name} "
                f"is not known",
                hint=f"known: {', '.join(names)}",
            )
    chosen = {gpu.name for gpu in asked} or set(names)
    return tuple(gpu for gpu in gpus.gpus() if gpu.name in chosen)
