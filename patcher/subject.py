"""What is judged: the parsed files, the model they describe, and the statements they make."""

from __future__ import annotations

from copy import copy as shallow_copy
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from patcher.errors import UnreadableError
from patcher.jsontext import parse_pointer
from patcher.metadata import declarations as statements
from patcher.metadata import model as models
from patcher.verdict import Location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.jsontext import Document
    from patcher.metadata.declarations import Declaration, Missing
    from patcher.metadata.model import Model
    from patcher.recipes import Operations


class Subject(Struct, frozen=True):
    """The metadata of one checkpoint.

    Attributes:
        values: file -> parsed value.
        missing: required keys that were deleted.
        ambiguous: keys that stand twice on the way to a statement; parsers differ on which counts.
        bom: files that start with a byte order mark, which engines' plain ``json.load`` refuses.
    """

    values: Mapping[str, Any]
    model: Model
    declarations: tuple[Declaration, ...]
    missing: tuple[Missing, ...]
    ambiguous: tuple[Location, ...]
    bom: tuple[str, ...]

    @classmethod
    def of(cls, documents: Mapping[str, Document]) -> Subject:
        """Read everything that the judgement needs from the documents.

        Raises:
            UnreadableError: config.json does not describe a model.
        """
        values = {name: document.value for name, document in documents.items()}
        found = statements.find(documents)
        return cls(
            values=values,
            model=models.describe(values),
            declarations=found,
            missing=statements.missing_required(documents),
            ambiguous=_ambiguous(documents, found),
            bom=tuple(name for name, document in documents.items() if document.bom),
        )

    def with_operations(self, operations: Operations) -> Subject:
        """The same checkpoint as a patch would leave it; only ``values`` differ.

        Raises:
            UnreadableError: an operation does not fit, which is a fault of the recipe.
        """
        import jsonpatch  # noqa: PLC0415 - lazy: 12 ms, and only a conflict needs it

        values = dict(self.values)
        for file, patch in operations.items():
            try:
                unshared = _unshared(values[file], [operation["path"] for operation in patch])
                values[file] = jsonpatch.JsonPatch(patch).apply(unshared, in_place=True)
            except jsonpatch.JsonPatchException as error:
                raise UnreadableError(f"the patch does not fit: {error}", path=file) from error
        return replace(self, values=values)

    def location(self, file: str, pointer: str) -> Location:
        """The line of a statement; line 1 for a pointer that is no statement."""
        for declaration in self.declarations:
            if (declaration.file, declaration.pointer) == (file, pointer):
                return Location(file, pointer, declaration.line)
        return Location(file, pointer, 1)


def _unshared(value: Any, pointers: list[str]) -> Any:
    """A copy that shares everything which is not on the way to a pointer.

    A deep copy of a 3 MB config takes a third of a second, and every cure needs one.
    """
    copied = shallow_copy(value)
    for pointer in pointers:
        node = copied
        for token in parse_pointer(pointer)[:-1]:
            key = int(token) if isinstance(node, list) else token
            node[key] = shallow_copy(node[key])
            node = node[key]
    return copied


def _ambiguous(
    documents: Mapping[str, Document], declarations: tuple[Declaration, ...]
) -> tuple[Location, ...]:
    return tuple(
        Location(name, duplicate.pointer, duplicate.lines[-1])
        for name, document in documents.items()
        for duplicate in document.duplicates
        if any(
            declaration.file == name
            and f"{declaration.pointer}/".startswith(f"{duplicate.pointer}/")
            for declaration in declarations
        )
    )
