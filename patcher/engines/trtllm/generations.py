"""The generations of TensorRT-LLM's code, and which of them a release may hold."""

from __future__ import annotations

import functools
import json
import os
from typing import Any, Literal

from msgspec import Struct

from patcher.engines import facts

_FOLDER = os.path.join(os.path.dirname(facts.__file__), "trtllm")


class Generation(Struct, frozen=True):
    """What differs from one generation to the next.

    Attributes:
        name: ``"oldest"``, ``"middle"``, ``"middle with flat files"`` or ``"main"``.
        flag_values: what ``--kv_cache_dtype`` takes.
        sparse_flag_values: what it takes besides for sparse MLA on SM120 and SM121.
        flag_mismatch: what an explicit value does to a different one in the files.
        flat_files: it has ``quantization/modelopt_config.py``, which also reads flat files and
            config.json's block; before, only a file with a ``quantization`` object was parsed.
    """

    name: str
    flag_values: tuple[str, ...]
    sparse_flag_values: tuple[str, ...]
    flag_mismatch: Literal["refuses", "overrides"]
    flat_files: bool


@functools.cache
def of(release: str) -> tuple[Generation, ...]:
    """The generations that ``release`` may hold, the likeliest first."""
    with open(os.path.join(_FOLDER, f"{release}.resolution.json"), encoding="utf-8") as file:
        return tuple(map(_generation, json.load(file)["generations"]))


def _generation(row: dict[str, Any]) -> Generation:
    return Generation(
        name=row["name"],
        flag_values=tuple(row["flag"]["values"]),
        sparse_flag_values=tuple(row["flag"]["sparse_mla_sm12x"]),
        flag_mismatch=row["flag"]["mismatch"],
        flat_files=row["flat_files"]["read"],
    )
