"""What a vLLM release starts and its kernels then fail at: a small layer of facts kept by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.engines import facts
from patcher.engines.base import Notice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.engines.base import Place


def notices(
    capability: str, backend: str | None, kv_cache_dtype: str, place: Place | None
) -> Iterator[Notice]:
    """A warning for each row that describes this launch; nothing was run on a GPU."""
    for row in facts.load("vllm", "kernels", "read")["kernels"]:
        if (
            capability in row["capabilities"]
            and backend in row["backends"]
            and kv_cache_dtype in row["kv_cache_dtypes"]
        ):
            message = f"expected to fail at run time: {row['message']}"
            yield Notice("KV002", "warning", message, place)
