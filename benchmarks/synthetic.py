"""Make a checkpoint of any size that takes no space: real headers, holes for weights.

    python benchmarks/synthetic.py DIR
    python benchmarks/synthetic.py DIR --shards 4 --tensors 1000 --size 1e9 --header 100000

The names are those of a mixture of experts with multi-head latent attention, as ModelOpt writes
them for NVFP4. ``config.json`` and ``hf_quant_config.json`` are those of the fixture.
"""

# ruff: noqa: INP001 - a program

from __future__ import annotations

import argparse
import json
import shutil
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
#: Attention layers of the fixture's config.json.
LAYERS = 61
#: Bytes of a scale, and the least that a weight has.
SCALE, ROW = 4, 1024


def names(*, scales: bool) -> Iterator[str]:
    """Names of tensors without end: attention of all layers first, then one expert of each."""
    for layer in range(LAYERS):
        attention = f"language_model.model.layers.{layer}.self_attn"
        for part in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
            yield f"{attention}.{part}.weight"
        if scales:
            yield f"{attention}.k_proj.k_scale"
            yield f"{attention}.v_proj.v_scale"
    for expert in count():
        for layer in range(LAYERS):
            for part in ("gate_proj", "up_proj", "down_proj"):
                name = f"language_model.model.layers.{layer}.mlp.experts.{expert}.{part}"
                yield from (
                    f"{name}.{each}"
                    for each in ("weight", "weight_scale", "weight_scale_2", "input_scale")
                )


def make(  # noqa: PLR0913 - what a checkpoint can differ in
    root: Path,
    *,
    shards: int = 119,
    tensors: int = 281_000,
    size: int = 586_000_000_000,
    header: int = 0,
    index: bool = True,
    scales: bool = True,
) -> Path:
    """Write a checkpoint to a folder, which is made.

    Args:
        root: the folder.
        shards: number of files.
        tensors: number of tensors in all of them.
        size: bytes that the weights seem to have.
        header: least bytes of each header; shorter ones are padded with spaces, as the format
            allows.
        index: whether there is a ``model.safetensors.index.json``.
        scales: whether there are k and v scales.
    """
    root.mkdir(parents=True)
    for source in FIXTURE.glob("*.json"):
        shutil.copy(source, root)
    every = sorted(islice(names(scales=scales), tensors))
    weight_map: dict[str, str] = {}
    for number in range(shards):
        here = every[number * tensors // shards : (number + 1) * tensors // shards]
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        _write_shard(root / file, here, size // shards, header)
        weight_map |= dict.fromkeys(here, file)
    if index:
        content = {"metadata": {"total_size": size}, "weight_map": weight_map}
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        (root / "model.safetensors.index.json").write_text(text)
    return root


def _write_shard(path: Path, here: list[str], size: int, header: int) -> None:
    weights = sum(name.endswith(".weight") for name in here)
    rows = max(1, size // ROW // max(1, weights))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in here:
        dtype, shape, width = ("F32", [], SCALE)
        if name.endswith(".weight"):
            dtype, shape, width = ("U8", [rows, ROW], rows * ROW)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + width]}
        end += width
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * max(header - len(raw), -len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)


def main() -> None:
    """Make one checkpoint from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", type=Path, metavar="DIR")
    parser.add_argument("--shards", type=int, default=119)
    parser.add_argument("--tensors", type=int, default=281_000)
    parser.add_argument("--size", type=lambda text: int(float(text)), default=586_000_000_000)
    parser.add_argument("--header", type=int, default=0, help="least bytes of each header")
    parser.add_argument("--no-index", dest="index", action="store_false")
    parser.add_argument("--no-scales", dest="scales", action="store_false")
    make(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
