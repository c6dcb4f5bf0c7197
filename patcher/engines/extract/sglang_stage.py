"""A stage on which an SGLang release plays: one GPU, no torch, no transformers.

``Stage`` runs definitions of the release through the slicer (see slicer.py). What the release asks
of torch, the driver and the model files is answered here and nowhere else; ``ASSUMED`` says so in
words and stands in every file of facts.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.sglang_own import CLASSES
from patcher.engines.extract.sglang_stubs import Card, environment, installed, nothing, torch
from patcher.engines.extract.shims import Atom, Shim, third_party
from patcher.engines.extract.slicer import Slicer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.engines.extract.index import Index
    from patcher.engines.extract.source import Source

ASSUMED = (
    "one GPU with 80 GB, CUDA 13.0 or ROCm 7.0, PyTorch 2.9.1",
    "FlashInfer, sgl-kernel and the other pinned packages installed",
    "no environment variable set, no speculation, no disaggregation",
    "the release's Python code, run without torch, transformers or any kernel",
)

#: Modules that register by decorator or read annotations: executed as a whole, not by demand.
_WHOLE = (
    "sglang.srt.arg_groups.arg_utils",
    "sglang.srt.arg_groups.fields",
    "sglang.srt.arg_groups.model_overrides",
    "sglang.srt.arg_groups.overrides",
    "sglang.srt.environ",
    "sglang.srt.layers.attention.attention_registry",
    "sglang.srt.server_args",
)
#: Directories of the package that have no ``__init__.py``.
_NAMESPACES = frozenset(
    f"sglang{name}" for name in ("", ".srt", ".srt.layers", ".srt.models", ".kernels")
)


class _Torch(Shim):
    """The Shim of torch, with a version."""

    __slots__ = ()
    __version__ = "2.9.1"


#: Makes the stage of a card; all stages of one release share its parsed and compiled code.
Stages = Callable[[Card], "Stage"]


class Stage(Slicer):
    """One release on one GPU; a model path is a directory with a config.json."""

    def __init__(
        self, source: Source, card: Card, *, indexes: dict[str, Index] | None = None
    ) -> None:
        super().__init__(source, "sglang", third_party(), indexes=indexes)
        self.answers.update({**torch(card), **installed(), **environment(self._class_of)})
        self.answers["model dtype"] = Atom("model")
        self.answers.update({"os": os, "os.path": os.path})  # checkpoints are real directories
        self.answers["torch"] = _Torch("torch", self.answers)
        logging.getLogger("sglang").setLevel(logging.CRITICAL + 1)
        for name in ("info_once", "warning_once"):  # SGLang adds these to every logger
            setattr(logging.Logger, name, nothing)

    def _class_of(self, model_type: str) -> Any:
        name = CLASSES.get(model_type, "")
        return self.get(name) if name and self.has(name) else None

    def _own_module(self, name: str) -> Any:
        if name not in self._modules:
            path = self._path(name)
            if path and any(name == whole or name.startswith(f"{whole}.") for whole in _WHOLE):
                return self._execute(name, path)
            if path is None and name in _NAMESPACES:
                self._modules[name] = _Package(name, self.module)  # type: ignore[assignment]
                return self._modules[name]
            _add_builtins(super()._own_module(name))
        return super()._own_module(name)

    def _execute(self, name: str, path: str) -> types.ModuleType:
        """All of a module, as Python would import it; it stays in ``sys.modules`` for typing."""
        module = _Package(name, self.module)
        package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
        vars(module).update(__package__=package, __file__=path, __builtins__=self.builtins)
        sys.modules[name] = self._modules[name] = module  # type: ignore[assignment]
        index = self._index(path)
        exec(index.code(index.tree, path), vars(module))  # noqa: S102 - the purpose of the stage
        return module


def _add_builtins(module: Any) -> None:
    """Half of the time goes into looking for ``len`` and ``str`` in a module that has neither."""
    scope = vars(module).get("scope")
    if scope is not None and not scope.index.stars:
        for name, value in vars(builtins).items():
            if name not in scope.index:
                scope.setdefault(name, value)


class _Package(types.ModuleType):
    """A module whose submodules appear when they are looked up."""

    def __init__(self, name: str, module: Callable[[str], Any]) -> None:
        super().__init__(name)
        self._module = module

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        try:
            return self._module(f"{self.__name__}.{key}")
        except ModuleNotFoundError as error:
            raise AttributeError(key) from error


@contextlib.contextmanager
def clean_environment() -> Iterator[None]:
    """No environment variable; what a launch writes into ``os.environ`` is gone afterwards."""
    before = dict(os.environ)
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
