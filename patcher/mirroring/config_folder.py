"""What vLLM's ``--hf-config-path`` takes in place of a model's own folder, and where that helps.

Of the folder that the option names, vLLM 0.11.2 to 0.33.0 reads config.json with the Python files
that it names, hf_quant_config.json where config.json has no ``quantization_config``, and
generation_config.json (vllm/config/model.py and transformers_utils/config.py, ``get_config``).
Weights, tokenizer and everything else come from the model's own folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from patcher.checkpoint import open_checkpoint
from patcher.errors import RefusedError
from patcher.headers.files import quoted
from patcher.mirroring.listing import LARGE, Tree
from patcher.target import command_line

if TYPE_CHECKING:
    from patcher.checkpoint import Checkpoint
    from patcher.planning import Plan

_FILES = {"config.json", "hf_quant_config.json", "generation_config.json"}


def belongs(path: str) -> bool:
    """Whether a file of a checkpoint is one that the option reads."""
    return path in _FILES or (path.endswith(".py") and "/" not in path)


def narrowed(tree: Tree) -> Tree:
    """Of a checkpoint's tree, what the option reads."""
    items = [item for item in tree.items if belongs(item.path)]
    return replace(tree, items=items, folders=[], links={}, notes=[])


def downloaded(checkpoint: Checkpoint) -> Checkpoint:
    """Of a repository on the Hub, the snapshot that has these files; no weights are fetched.

    Raises:
        UnreadableError: a file did not arrive.
    """
    if checkpoint.remote is None:
        return checkpoint
    for name in filter(belongs, checkpoint.remote.files or ()):
        checkpoint.remote.fetch(name, LARGE)
    return open_checkpoint(checkpoint.root)


def require_obeyed(checkpoint: Checkpoint, plan: Plan, place: str) -> None:
    """The folder must be what decides: see before it is made.

    Raises:
        RefusedError: the engine would go on reading the model's own files.
    """
    engine = plan.before.target.engine
    reasons = (
        (
            engine not in {None, "vllm"},
            f"--hf-config-path is an option of vLLM, and {engine} reads the model's own folder",
        ),
        (
            _is_mistral(checkpoint),
            "vLLM reads params.json where consolidated weights lie beside it, which such a folder "
            "does not have",
        ),
        (
            _layers_are_elsewhere(checkpoint),
            "config.json has no quantized_layers, so vLLM reads hf_quant_config.json of this "
            "mixed-precision model from the model's own folder, whatever --hf-config-path says",
        ),
    )
    why = next((why for applies, why in reasons if applies), None)
    if why:
        words = command_line(plan.before.target.to_dict())
        raise RefusedError(
            f"a folder for --hf-config-path will not help: {why}. Nothing was written",
            path=checkpoint.name,
            hint=f"a whole mirror will: ckpt-patch mirror {words} {quoted(checkpoint.name)} "
            f"{quoted(place)}",
        )


def _is_mistral(checkpoint: Checkpoint) -> bool:
    consolidated = any(name.startswith("consolidated") for name in checkpoint.shards)
    return checkpoint.layout == "mistral" or (consolidated and "params.json" in checkpoint.entries)


def _layers_are_elsewhere(checkpoint: Checkpoint) -> bool:
    """Whether ``get_quant_config`` falls through to the file (weight_utils.py, since 0.17.1)."""
    values = {name: document.value for name, document in checkpoint.documents.items()}
    sidecar = values.get("hf_quant_config.json")
    if not isinstance(sidecar, Mapping):
        return False
    block = values["config.json"].get("quantization_config") or sidecar
    nested = sidecar.get("quantization")
    algorithms = [each.get("quant_algo") for each in (block, nested) if isinstance(each, Mapping)]
    mixed = "MIXED_PRECISION" in algorithms or block.get("quant_method") == "modelopt_mixed"
    return mixed and "quantized_layers" not in block
