"""SGLang's rows: what ``ServerArgs`` makes of launch flags, without a checkpoint."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from patcher.engines.sglang import launch, rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.gpus import Gpu

#: A launch flag that is not given, in the facts.
_ABSENT = "-"


class SglangRow(Struct, frozen=True):
    """One launch; ``None`` is a flag that is not given.

    Attributes:
        cap: the name of the GPU.
        model: ``mla`` (DeepSeek-V3), ``kimi`` (Kimi-K2.5), ``dsa`` (DeepSeek-V3.2), ``mha``, or an
            architecture that has rules of its own.
        result: what is resolved, or the refusal.
    """

    cap: str
    model: str
    attention_backend_flag: str | None
    decode_flag: str | None
    kv_flag: str
    result: launch.Row

    def to_dict(self) -> dict[str, Any]:
        """The row, flat."""
        row: dict[str, Any] = to_builtins(self)
        result: dict[str, Any] = row.pop("result")
        return row | result


def backends(release: str) -> tuple[str, ...]:
    """The choices of ``--attention-backend``."""
    return tuple(name for name in _asked(release)["attention_backend_flag"] if name != _ABSENT)


def covered(release: str) -> tuple[str, ...]:
    """The names of the GPUs that the facts are about."""
    return tuple(_asked(release)["gpu"])


def rows(release: str, gpu: Gpu, backend: str | None) -> Iterator[SglangRow]:
    """Every model and KV-cache dtype, with no backend, each backend, and each for decoding only.

    With ``backend``, only the launches that ask for it.
    """
    known, asked = rules.load(release), _asked(release)
    flags = [(name, _ABSENT) for name in asked["attention_backend_flag"]]
    flags += [(_ABSENT, name) for name in asked["decode_flag"] if name != _ABSENT]
    chosen = [pair for pair in flags if backend in {None, pair[0]}]
    for model, pair, kv_flag in itertools.product(asked["model"], chosen, asked["kv_flag"]):
        main, decode = (None if name == _ABSENT else name for name in pair)
        result = launch.server_args(
            known,
            cap=gpu.name,
            kind=model,
            attention_backend_flag=main,
            decode_flag=decode,
            kv_flag=kv_flag,
        )
        assert result is not None, "the facts cover what they list"
        yield SglangRow(gpu.name, model, main, decode, kv_flag, result)


def _asked(release: str) -> dict[str, list[str]]:
    """The values of the launches that the release was asked about."""
    features: dict[str, list[str]] = rules.load(release)["launch"]["features"]
    return features
