"""Run single definitions of an engine release without importing the engine.

Importing vLLM or SGLang needs torch, CUDA and minutes. But a question such as "does
TritonMLABackend support fp8?" touches some hundred definitions in thirty files. ``Slicer`` compiles
exactly those, at the moment a name is looked up: it never executes a whole module. Everything
outside the engine's package is the standard library (with the release's files and no environment
variables), a value given in ``answers``, or a Shim that refuses to be judged (see shims.py).

    slicer = Slicer(DirectorySource("/tmp/vllm-0.16.0"), "vllm", third_party())
    slicer.answers["vllm.platforms.current_platform"] = my_platform
    backend = slicer.get("vllm.v1.attention.backends.mla.triton_mla:TritonMLABackend")
    backend.supports_kv_cache_dtype("fp8")       # the release's own code runs
    slicer.line("vllm.v1.attention.backends.mla.triton_mla:TritonMLABackend")   # provenance

``answers`` maps ``"module.name"`` to a value, both for names inside the package (they replace the
engine's own definition) and for third-party names; ``ABSENT`` makes an import fail. Within one
Slicer the engine's caches and module state live on; ``fresh()`` gives a new one that shares only
the parsed sources.

Limits: ``x is None`` on a Shim cannot be noticed; ``globals()`` shows what was touched only; the
code of the release is executed, so it must be as trustworthy as the engine itself.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.index import Index, class_scope_names
from patcher.engines.extract.shims import ABSENT, Shim, release_os
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

    from patcher.engines.extract.source import Source

#: Annotations stay strings: they name more modules than the code does.
_LAZY_ANNOTATIONS = __future__.annotations.compiler_flag


class Slicer:
    """Definitions of one release, compiled on demand.

    Attributes:
        answers: see the module; may be changed until the name in question is first touched.
        touched: ``module:name`` of every definition that was executed, in that order.
        assumed: third-party modules that were imported as Shims ("installed, contents unknown").
    """

    def __init__(
        self,
        source: Source,
        package: str,
        answers: Mapping[str, Any],
        *,
        indexes: dict[str, Index] | None = None,
    ) -> None:
        self.source = source
        self.package = package
        self.answers: MutableMapping[str, Any] = {**release_os(source.exists), **answers}
        self.answers.setdefault("importlib.import_module", self._import_module)
        self.answers.setdefault("importlib.util.find_spec", self._find_spec)
        self.touched: dict[str, None] = {}
        self.assumed: dict[str, None] = {}
        self._indexes = {} if indexes is None else indexes
        self._modules: dict[str, LazyModule] = {}
        self.builtins = dict(vars(builtins)) | {"__import__": self._import}

    def fresh(self, answers: Mapping[str, Any]) -> Slicer:
        """A slicer of the same release with other answers and no state."""
        return Slicer(self.source, self.package, answers, indexes=self._indexes)

    def get(self, name: str) -> Any:
        """The object ``module:attribute`` (attribute may be dotted).

        Raises:
            UnreadableError: this release has no such module or name.
            ShimJudgedError: defining it depends on an unknown third-party value.
        """
        module, _, path = name.partition(":")
        try:
            value: Any = self.module(module)
            for part in path.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError) as error:
            raise UnreadableError(f"{name} is not in this release: {error}", path=module) from error
        return value

    def has(self, name: str) -> bool:
        """Whether the release defines or imports ``module:name``; nothing is executed."""
        module, _, attribute = name.partition(":")
        path = self._path(module)
        return path is not None and (not attribute or attribute in self._index(path))

    def names(self, module: str) -> list[str]:
        """All names that ``module`` binds at its top level; empty if there is no such module."""
        path = self._path(module)
        return self._index(path).names() if path else []

    def line(self, name: str) -> int:
        """Line of the last definition of ``module:name`` in its file; 0 where it is unknown."""
        module, _, attribute = name.partition(":")
        path = self._path(module)
        return self._index(path).line(attribute) if path else 0

    def module(self, name: str) -> Any:
        """The module called ``name`` as the engine's code would import it.

        Raises:
            ModuleNotFoundError: the package has no such module, or an answer says it is ABSENT.
        """
        top = name.partition(".")[0]
        value = self.answers.get(name, self.answers.get(top))
        if value is ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in self.answers:
            return value
        if top == self.package:
            return self._own_module(name)
        if top == "importlib":
            return Shim(name, self.answers)
        if top in sys.stdlib_module_names:
            return importlib.import_module(name)
        self.assumed[name] = None
        return Shim(name, self.answers)

    def _own_module(self, name: str) -> Any:
        if name not in self._modules:
            path = self._path(name)
            if path is None:
                if self.source.has_extension(name.replace(".", "/")):
                    return Shim(name, self.answers)
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            self._modules[name] = LazyModule(self, name, path, self._index(path))
        return self._modules[name]

    def _path(self, module: str) -> str | None:
        base = module.replace(".", "/")
        candidates = (f"{base}.py", f"{base}/__init__.py")
        return next((path for path in candidates if self.source.exists(path)), None)

    def _index(self, path: str) -> Index:
        if path not in self._indexes:
            self._indexes[path] = Index(ast.parse(self.source.read(path), path))
        return self._indexes[path]

    def _import(
        self,
        name: str,
        scope: Mapping[str, Any] | None = None,
        _locals: object = None,
        fromlist: tuple[str, ...] = (),
        level: int = 0,
    ) -> Any:
        """The ``__import__`` of the engine's code."""
        if level:
            assert scope is not None
            parts = scope["__package__"].split(".")
            base = ".".join(parts[: len(parts) - level + 1])
            name = f"{base}.{name}" if name else base
        module = self.module(name)
        return module if fromlist else self.module(name.partition(".")[0])

    def _import_module(self, name: str, package: str | None = None) -> Any:
        level = len(name) - len(name.lstrip("."))
        return self._import(name.lstrip("."), {"__package__": package}, None, ("*",), level)

    def _find_spec(self, name: str, _package: str | None = None) -> Any:
        """Third-party packages are installed unless an answer says otherwise."""
        try:
            self.module(name)
        except ModuleNotFoundError:
            return None
        return Shim(f"spec of {name}", self.answers)


class LazyModule(types.ModuleType):
    """A module of the engine whose attributes are compiled when they are looked up."""

    def __init__(self, slicer: Slicer, name: str, path: str, index: Index) -> None:
        super().__init__(name)
        vars(self)["scope"] = Scope(slicer, self, path, index)

    def __getattr__(self, key: str) -> Any:
        """The definition; else PEP 562's ``__getattr__``; else the submodule of that name."""
        scope: Scope = vars(self)["scope"]
        with contextlib.suppress(KeyError):
            return scope[key]
        if key.startswith("__"):
            raise AttributeError(key)
        if "__getattr__" in scope.index:
            with contextlib.suppress(AttributeError):
                return scope["__getattr__"](key)
        try:
            return scope.slicer.module(f"{self.__name__}.{key}")
        except ModuleNotFoundError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {key!r}") from None


class Scope(dict[str, Any]):
    """The globals of one module: a missing name is defined by executing its statements."""

    def __init__(self, slicer: Slicer, module: LazyModule, path: str, index: Index) -> None:
        is_package = path.endswith("/__init__.py")
        name = module.__name__
        super().__init__(
            __name__=name,
            __package__=name if is_package else name.rpartition(".")[0],
            __builtins__=slicer.builtins,
            __file__=path,
        )
        self.slicer = slicer
        self.index = index
        self.path = path
        self._module = module
        self._busy: set[str] = set()
        self._done: set[ast.stmt] = set()

    def __missing__(self, key: str) -> Any:
        """Define ``key``.

        Raises:
            KeyError: the module does not bind it (or is in the middle of doing so).
        """
        name = f"{self['__name__']}.{key}"
        if name in self.slicer.answers:
            self[key] = self.slicer.answers[name]
        elif key in self._busy:
            raise KeyError(key)
        elif key in self.index:
            self._define(key)
        else:
            self[key] = self._from_star_imports(key)
        if not dict.__contains__(self, key):  # every binding stands under a guard that fails
            raise KeyError(key)
        return self[key]

    def _define(self, key: str) -> None:
        self.slicer.touched[f"{self['__name__']}:{key}"] = None
        self._busy.add(key)
        try:
            for binding in self.index.bindings(key):
                if binding.statement not in self._done and self._holds(binding.guards):
                    self._run(binding.statement)
        finally:
            self._busy.discard(key)

    def _holds(self, guards: tuple[tuple[ast.expr, bool], ...]) -> bool:
        """Whether a statement under ``if`` at module level is executed."""
        return all(bool(self._evaluate(test)) is wanted for test, wanted in guards)

    def _evaluate(self, test: ast.expr) -> Any:
        return eval(self.index.code(test, self.path), self)  # noqa: S307 - the purpose

    def _run(self, statement: ast.stmt) -> None:
        # A class body reads globals past __missing__ (LOAD_NAME): its names must be there before.
        for name in class_scope_names(statement):
            if name in self.index and not dict.__contains__(self, name):
                with contextlib.suppress(KeyError):
                    self[name]
        self._done.add(statement)
        code = self.index.code(statement, self.path, _LAZY_ANNOTATIONS)
        try:
            with _registered(self._module):
                exec(code, self)  # noqa: S102 - the purpose of this module
        except BaseException:
            self._done.discard(statement)
            raise

    def _from_star_imports(self, key: str) -> Any:
        for module, level in self.index.stars:
            source = self.slicer._import(module, self, None, ("*",), level)  # noqa: SLF001
            with contextlib.suppress(AttributeError):
                return getattr(source, key)
        raise KeyError(key)


@contextlib.contextmanager
def _registered(module: LazyModule) -> Iterator[None]:
    """``dataclasses`` and ``typing`` look a class's module up in ``sys.modules``."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
