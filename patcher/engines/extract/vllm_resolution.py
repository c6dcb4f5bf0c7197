"""Facts about how a vLLM release turns metadata files and a flag into a KV-cache dtype.

``python -m patcher.engines.extract.vllm_resolution 0.33.0 [...]`` runs the release's own functions
over probing inputs (see the ``vllm_probe_*`` modules) and writes one readable JSON file a release.
Maintainers' code: the tool itself reads the facts only.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from typing import TYPE_CHECKING, Any

from patcher.engines.extract import (
    vllm_probe_blocks,
    vllm_probe_cache,
    vllm_probe_methods,
    vllm_probe_schemes,
)
from patcher.engines.extract.source import DirectorySource, wheel_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patcher.engines.extract.source import Source

_PROBES = {
    "cache_dtypes": vllm_probe_cache.cache_dtypes,
    "top_block": vllm_probe_blocks.top_block,
    "normalization": vllm_probe_blocks.normalization,
    "methods": vllm_probe_methods.methods,
    "resolver": vllm_probe_cache.resolver,
    "config_block": vllm_probe_blocks.config_block,
    "config_classes": vllm_probe_methods.config_classes,
    "modelopt": vllm_probe_methods.modelopt,
    "compressed_tensors": vllm_probe_schemes.compressed_tensors,
    "quark": vllm_probe_schemes.quark,
    "validators": vllm_probe_cache.validators,
    "layers": vllm_probe_cache.layers,
    "e5m2": vllm_probe_cache.e5m2,
    "mla": vllm_probe_blocks.mla_model_types,
}


def extract(source: Source, version: str) -> dict[str, Any]:
    """All facts of one release. ``from`` in a block is the ``module:line`` that was executed.

    Raises:
        UnreadableError: the release lacks a definition that every known release has.
        ShimJudgedError: an answer depends on a package that is not there.
        AssertionError: the release contradicts the form of the facts (the message says where).
    """
    head = {"schema": "ckpt-patch/vllm-resolution@1", "engine": "vllm", "version": version}
    return head | {name: probe(source) for name, probe in _PROBES.items()}


def render(facts: dict[str, Any]) -> str:
    """JSON text: one block a paragraph, one row a line."""
    return _render(facts, 0) + "\n"


def _render(value: Any, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    wide = len(flat) > 88 and depth < 3  # noqa: PLR2004 - a line's length; deeper is always a row
    if not isinstance(value, (dict, list)) or not (wide or depth == 0) or not value:
        return flat
    indent = " " * (depth + 1)
    if isinstance(value, list):
        if not isinstance(value[0], dict):
            return flat
        lines = [indent + json.dumps(row, ensure_ascii=False) for row in value]
        return "[\n" + ",\n".join(lines) + "\n" + " " * depth + "]"
    lines = [f'{indent}"{key}": {_render(item, depth + 1)}' for key, item in value.items()]
    return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write ``<version>.resolution.json`` for every version named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--trees", help="folder of unpacked wheels vllm-<version>, not PyPI")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--out", default=os.path.join(here, os.pardir, "facts", "vllm"))
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # the engine warns about every odd value it is asked about
    os.makedirs(options.out, exist_ok=True)
    for version in options.versions:
        source: Source = (
            DirectorySource(os.path.join(options.trees, f"vllm-{version}"))
            if options.trees
            else wheel_source("vllm", version)
        )
        path = os.path.join(options.out, f"{version}.resolution.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(render(extract(source, version)))


if __name__ == "__main__":
    main()
