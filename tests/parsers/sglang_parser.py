"""An SGLang release's own loader on a checkpoint's files, up to the dtype of the memory pool.

What runs is the release's: ``ModelConfig._verify_quantization``, ``get_quant_config`` with
``from_config``, ``get_quant_method`` and the choice of the pool's dtype. Not run: the model's own
class, which in some architectures drops the quantization config; that is taken from the facts.
"""

from __future__ import annotations

import copy
import types
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.sglang_checkpoint import model_config, pool
from patcher.engines.extract.sglang_stage import Stage, clean_environment
from patcher.engines.extract.sglang_stubs import CARDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.engines.extract.source import Source

_QUANT_CONFIG = "sglang.srt.model_loader.weight_utils:get_quant_config"
_ATTENTION = "sglang.srt.layers.radix_attention:RadixAttention"
_PREFIX = "model.layers.0.self_attn.attn"
#: torch's names -> ours; everything else is the model's own dtype.
_NAMES = {"torch.float8_e4m3fn": "fp8_e4m3", "torch.float8_e5m2": "fp8_e5m2"}


class Parser:
    """One release on an NVIDIA GPU; nothing that runs here looks at which one."""

    def __init__(self, source: Source) -> None:
        card = next(card for card in CARDS if card.name == "sm120")
        self._stage = Stage(source, card)

    def kv_cache_dtype(self, folder: str, *, hears: bool, overrides: Mapping[str, Any]) -> str:
        """The pool's dtype; ``auto`` is the model's own.

        ``hears``: the model's class keeps the quantization config. The only flag is
        ``--json-model-override-args``, where there are ``overrides``, which update the config as
        the release's get_config does. Raises what the release raises.
        """
        with clean_environment():
            algo = self._algo(folder, overrides)
            dtype = repr(pool(self._stage, "auto", algo if hears else None))
        return _NAMES.get(dtype, "auto")

    def _algo(self, folder: str, overrides: Mapping[str, Any]) -> str | None:
        config = model_config(self._stage, folder, None)
        config.hf_config.update(copy.deepcopy(dict(overrides)))
        config._verify_quantization()
        if config.quantization is None:
            return None
        load = types.SimpleNamespace(model_loader_extra_config={}, download_dir=None)
        quant = self._stage.get(_QUANT_CONFIG)(config, load, {})
        layer = self._stage.get(_ATTENTION)
        quant.get_quant_method(layer.__new__(layer), _PREFIX)
        algo: str | None = getattr(quant, "kv_cache_quant_algo", None)
        return algo
