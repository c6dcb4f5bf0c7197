"""The models that an SGLang release is asked about: small configurations of real architectures."""

from __future__ import annotations

import ast
import json
import os
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.source import DirectorySource, WheelSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.extract.source import Source

_DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
}
_LATENT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 4,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "hidden_act": "silu",
}
_SPARSE = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
_KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "torch_dtype": "bfloat16",
    "vision_config": {},
    "text_config": {
        **_LATENT,
        "model_type": "kimi_k2",
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "n_group": 1,
        "topk_group": 1,
    },
}

#: kind -> config.json. ``mla`` is DeepSeek-V3, ``kimi`` Kimi-K2.5, ``mha`` a dense GQA model,
#: ``dsa`` DeepSeek-V3.2.
MODELS: dict[str, dict[str, Any]] = {
    "mla": _LATENT,
    "kimi": _KIMI,
    "mha": _DENSE,
    "dsa": {**_LATENT, **_SPARSE},
}


def write(folder: str, files: Mapping[str, Any]) -> str:
    """Make ``folder`` a checkpoint of these metadata files; returns it."""
    os.makedirs(folder, exist_ok=True)
    for name, value in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(json.dumps(value))  # json.dump is Python, and slow
    return folder


def deaf(source: Source) -> list[str]:
    """Architectures whose class never sets ``self.quant_config``, in no base class either.

    SGLang asks the outermost model object for it, so these ignore what a checkpoint says about its
    KV cache. Read from the syntax tree; a class with a base outside ``sglang.srt.models`` that is
    not ``nn.Module`` counts as hearing.
    """
    classes: dict[str, tuple[set[str], bool]] = {}
    entries: set[str] = set()
    for path in files(source, "sglang/srt/models/"):
        text = source.read(path).lstrip("\ufeff")
        tree, lines = ast.parse(text), text.splitlines()
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                sets = _sets_quant_config(node, lines)
                classes[node.name] = bases - {"Module", "ABC"}, sets
        entries.update(_entry_classes(tree))
    return sorted(name for name in entries if not _hears(name, classes, set()))


def files(source: Source, folder: str) -> list[str]:
    """The Python files below ``folder`` (which ends in ``/``), sorted."""
    if isinstance(source, WheelSource):
        names = [name for name in source.names if name.startswith(folder)]
    elif isinstance(source, DirectorySource):
        names = [
            os.path.relpath(os.path.join(where, name), source.root)
            for where, _, found in os.walk(os.path.join(source.root, folder))
            for name in found
        ]
    return sorted(name for name in names if name.endswith(".py"))


def _sets_quant_config(node: ast.ClassDef, lines: list[str]) -> bool:
    own = lines[node.lineno - 1 : node.end_lineno]
    if not any("self.quant_config" in line for line in own):  # spares a walk through most classes
        return False
    targets = (n for n in ast.walk(node) if isinstance(n, ast.Attribute))
    return any(
        n.attr == "quant_config" and isinstance(n.ctx, ast.Store) and ast.unparse(n.value) == "self"
        for n in targets
    )


def _entry_classes(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
            yield from (n.id for n in ast.walk(node.value) if isinstance(n, ast.Name))


def _hears(name: str, classes: dict[str, tuple[set[str], bool]], seen: set[str]) -> bool:
    if name not in classes or name in seen:
        return name not in classes
    bases, sets = classes[name]
    return sets or any(_hears(base, classes, seen | {name}) for base in bases)
