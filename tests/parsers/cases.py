"""The files that go through the parsers: every declaring checkpoint, as published and patched."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from patcher import jsontext, recipes
from patcher.checkpoint import open_checkpoint
from patcher.findings import QUIET
from patcher.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
AS_PUBLISHED = "as published"
OVERRIDDEN = "overridden"
_BLOCK, _SIDECAR = "quantization_config", "hf_quant_config.json"
_DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One set of files in ``folder``, and how they are changed for one launch.

    Attributes:
        variant: a recipe, ``as published``, or ``overridden``: published files, and a launch with
            ``overrides`` of config.json.
        subject: what our verdicts are asked about; of ``overridden`` what the override amounts to.
    """

    name: str
    variant: str
    subject: Subject
    folder: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)


def cases(root: Path) -> Iterator[Case]:
    """Every case, written below ``root``; each patch is the one that its recipe makes."""
    for name, subject in _subjects():
        published = _written(root, name, AS_PUBLISHED, subject)
        yield published
        for recipe in recipes.packaged().values():
            operations = recipe.operations(subject.declarations, subject.missing)
            if operations:
                patched = subject.with_operations(operations)
                yield _written(root, name, recipe.id, patched)
                yield _overridden(published, patched, recipe.id)


def _overridden(published: Case, patched: Subject, recipe: str) -> Case:
    """The whole block of the patched files as a flag over the published ones."""
    config = published.subject.values["config.json"]
    block = patched.values["config.json"].get(_BLOCK) or patched.values.get(_SIDECAR)
    values = {**published.subject.values, "config.json": {**config, _BLOCK: block}}
    subject = structs.replace(published.subject, values=values)
    variant = f"{OVERRIDDEN}, {recipe}"
    return replace(published, variant=variant, subject=subject, overrides={_BLOCK: block})


def _written(root: Path, name: str, variant: str, subject: Subject) -> Case:
    folder = root / name / variant
    for file, value in subject.values.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value), encoding="utf-8")
    return Case(name, variant, subject, folder)


def _subjects() -> Iterator[tuple[str, Subject]]:
    """The corpus, then the forms that no checkpoint of the corpus has."""
    for folder in sorted(CORPUS.glob("*--*")) if CORPUS.is_dir() else ():
        subject = Subject.of(open_checkpoint(folder).documents)
        if any(item.meaning not in QUIET for item in subject.declarations) or subject.missing:
            yield folder.name, subject
    for path in sorted(CORPUS.glob("_shapes/*_quantization_config.json")):
        yield path.stem, _subject({"config.json": _DENSE | json.loads(path.read_bytes())})
    yield from ((name, _subject(files)) for name, files in _own().items())


def _own() -> dict[str, dict[str, Any]]:
    kimi = {path.name: json.loads(path.read_bytes()) for path in FIXTURE.glob("*.json")}
    config, sidecar = kimi["config.json"], kimi["hf_quant_config.json"]
    nvfp4 = config["quantization_config"] | {
        "kv_cache_scheme": {"dynamic": False, "num_bits": 4, "type": "float"}
    }
    inner = {key: value for key, value in sidecar["quantization"].items() if key[:2] != "kv"}
    return {
        "Kimi-K2.5, our fixture": kimi,
        "Kimi-K2.5, NVFP4 cache": {
            "config.json": config | {"quantization_config": nvfp4},
            "hf_quant_config.json": sidecar
            | {"quantization": inner | {"kv_cache_quant_algo": "NVFP4"}},
        },
        "a deleted key": {
            "config.json": _DENSE,
            "hf_quant_config.json": sidecar | {"quantization": inner},
        },
        "Llama, compressed-tensors": {"config.json": _DENSE | _compressed(8, "float")},
        "Llama, compressed-tensors int8": {"config.json": _DENSE | _compressed(8, "int")},
    }


def _compressed(bits: int, kind: str) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    scheme = {"num_bits": bits, "type": kind, "strategy": "tensor", "symmetric": True}
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": weights,
                    "input_activations": weights | {"dynamic": False},
                }
            },
            "kv_cache_scheme": scheme | {"dynamic": False},
        }
    }


def _subject(files: dict[str, Any]) -> Subject:
    texts = {name: json.dumps(value).encode() for name, value in files.items()}
    return Subject.of({name: jsontext.read(text, source=name) for name, text in texts.items()})
