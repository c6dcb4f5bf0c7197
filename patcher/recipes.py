"""Recipes: which KV-cache statements to change, and to what, as TOML that cannot run code."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from patcher.errors import UnreadableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.metadata.declarations import Declaration, Missing

SCHEMA = "ckpt-patch/recipe@1"
MAX_BYTES = 1024 * 1024

#: file -> RFC 6902 operations; each change is guarded by a `test` of the value that was judged.
Operations = dict[str, list[dict[str, Any]]]


class Rule(Struct, frozen=True):
    """One kind of change.

    Attributes:
        action: ``turn-off`` writes the neutral value of the statement's form (null, or an empty
            list for Quark), ``set`` writes ``value``, ``restore`` adds a deleted required key as
            null.
        producers: whose statements it touches.
        meanings: which meanings it touches.
        shape: for ``set``: whether the present value is a string or an object.
        value: for ``set``.
    """

    action: Literal["turn-off", "set", "restore"]
    producers: tuple[str, ...] = ()
    meanings: tuple[str, ...] = ()
    shape: Literal["string", "object"] | None = None
    value: str | dict[str, bool | int | str] | None = None

    def touches(self, declaration: Declaration) -> bool:
        """Whether this rule changes the statement."""
        shapes = {"string": str, "object": dict}
        return (
            self.action != "restore"
            and declaration.obeyed
            and declaration.producer in self.producers
            and declaration.meaning in self.meanings
            and (self.shape is None or isinstance(declaration.value, shapes[self.shape]))
        )


class Recipe(Struct, frozen=True):
    """A named list of rules, and the TOML that it was read from."""

    id: str
    version: int
    title: str
    effect: str
    rules: tuple[Rule, ...]
    notes: str = ""
    text: bytes = b""

    @property
    def sha256(self) -> str:
        """Of the recipe's own text, in hexadecimal."""
        import hashlib  # noqa: PLC0415 - lazy: it loads OpenSSL, and only a plan tells it

        return hashlib.sha256(self.text).hexdigest()

    def operations(
        self, declarations: tuple[Declaration, ...], missing: tuple[Missing, ...]
    ) -> Operations:
        """The RFC 6902 operations that this recipe asks for, per file; empty when it has none."""
        operations: Operations = {}
        for rule in self.rules:
            for declaration in filter(rule.touches, declarations):
                value = declaration.neutral if rule.action == "turn-off" else rule.value
                operations.setdefault(declaration.file, []).extend(
                    _replace(declaration.pointer, declaration.value, value)
                )
            if rule.action == "restore":
                for gap in missing:
                    operations.setdefault(gap.file, []).append(
                        {"op": "add", "path": gap.pointer, "value": None}
                    )
        return operations


def _replace(pointer: str, old: Any, new: Any) -> list[dict[str, Any]]:
    return [
        {"op": "test", "path": pointer, "value": old},
        {"op": "replace", "path": pointer, "value": new},
    ]


def folder() -> Path:
    """Where the packaged recipes are: inside the wheel, or beside a source checkout."""
    here = Path(__file__).parent
    installed = here / "_recipes"
    return installed if installed.is_dir() else here.parent / "recipes"


@cache
def packaged() -> Mapping[str, Recipe]:
    """The recipes that come with the tool, by id."""
    found = (load(path) for path in sorted(folder().glob("*.toml")))
    return {recipe.id: recipe for recipe in found}


def find(name: str) -> Recipe:
    """A packaged recipe by id, or a recipe file by path (anything with a ``/`` or ``.toml``).

    Raises:
        UsageError: no such recipe.
        UnreadableError: the file is no valid recipe.
    """
    if name in packaged():
        return packaged()[name]
    if name.endswith(".toml") or "/" in name:
        return load(Path(name))
    raise UsageError(
        f"unknown recipe {name!r}; known: {', '.join(packaged())}", hint="ckpt-patch recipes"
    )


def load(path: Path) -> Recipe:
    """Read and validate one recipe file.

    Raises:
        UnreadableError: it cannot be read, is larger than 1 MB, or breaks the schema; the message
            names the key.
    """
    from patcher import outfile  # noqa: PLC0415 - start-up time: what writes is not needed here

    return parse(outfile.read(path, MAX_BYTES, "recipe"), str(path))


def parse(data: bytes, source: str) -> Recipe:
    """Validate a recipe's text; see :func:`load`."""
    try:
        document = msgspec.toml.decode(data)
        schema = document.pop("schema", None)
        if schema != SCHEMA:
            raise UnreadableError(f"schema is {schema!r}, expected {SCHEMA!r}", path=source)
        document["rules"] = document.pop("rule", [])
        return replace(_validated(document, source), text=data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableError(
            f"not a valid recipe: {error}",
            path=source,
            hint=f"ckpt-patch recipes validate {source}",
        ) from error


def _validated(document: dict[str, Any], source: str) -> Recipe:
    known = {"id", "version", "title", "effect", "notes", "rules"}
    rule_keys = {"action", "producers", "meanings", "shape", "value"}
    unknown = set(document) - known
    for rule in document["rules"] if isinstance(document["rules"], list) else ():
        unknown |= set(rule) - rule_keys if isinstance(rule, dict) else set()
    if unknown:
        raise UnreadableError(f"unknown keys: {', '.join(sorted(unknown))}", path=source)
    recipe: Recipe = msgspec.convert(document, Recipe)
    if not recipe.rules:
        raise UnreadableError("the recipe has no [[rule]]", path=source)
    for rule in recipe.rules:
        if rule.action == "set" and rule.value is None:
            raise UnreadableError("a rule with action = 'set' needs a value", path=source)
    return recipe
