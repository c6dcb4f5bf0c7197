"""Many mirrors from one TOML file: each is made in turn, and none waits for the others to succeed.

::

    schema = "ckpt-patch/fleet-plan@1"  # may be absent

    [[mirror]]
    source = "Kimi-K2.5-NVFP4"          # a directory, or org/name on the Hub
    target = "sm120"
    engine = "vllm==0.16.0"             # may be absent: every known vLLM release
    destination = "patched/Kimi"        # relative paths start at the folder of the file
    # recipe, link, backend, kv_cache_dtype: as the options of `ckpt-patch mirror`
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from patcher import hub, mirroring, outfile
from patcher.checkpoint import open_checkpoint
from patcher.errors import CkptPatchError, InterruptedError_, UnreadableError
from patcher.headers.files import quoted
from patcher.mirroring import source as sources
from patcher.mirroring.listing import inside
from patcher.planning import plan
from patcher.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from patcher.mirroring.making import Outcome
    from patcher.planning import Plan

SCHEMA = "ckpt-patch/fleet-plan@1"
MAX_BYTES = 1024 * 1024
STANDARD_INPUT = "standard input"

_PLACE = re.compile(r"^(?P<message>.*) - at `\$(?P<path>.*)`$", re.DOTALL)


class Entry(Struct, frozen=True):
    """One ``[[mirror]]`` of the file; all paths are absolute or Hub ids."""

    source: str
    destination: str
    target: str
    engine: str | None = None
    recipe: str | None = None
    link: Literal["auto", "reflink", "hardlink", "symlink", "copy"] = "auto"
    backend: str | None = None
    kv_cache_dtype: str = "auto"
    decode_backend: str | None = None

    def launch(self) -> Target:
        """What the mirror shall run on.

        Raises:
            UsageError: something is unknown.
        """
        return Target.parse(
            self.target,
            engine=self.engine,
            attention_backend=self.backend,
            kv_cache_dtype=self.kv_cache_dtype,
            decode_attention_backend=self.decode_backend,
        )


class Result(Struct, frozen=True):
    """What became of one entry.

    Attributes:
        entry: what was asked for.
        outcome: ``failed`` and ``dry-run``, or what `make` says.
        plan: the patch; ``None`` where it came to none.
        error: why it failed.
    """

    entry: Entry
    outcome: Outcome | Literal["dry-run", "failed"]
    plan: Plan | None = None
    error: CkptPatchError | None = None


def load(path: Path) -> tuple[Entry, ...]:
    """Read and validate a fleet file.

    Raises:
        UnreadableError: it cannot be read, or the place that its pointer names is not as it has to
            be; nothing is made of a file that is wrong anywhere.
    """
    return parse(outfile.read(path, MAX_BYTES, "fleet file"), str(path), path.absolute().parent)


def parse(data: bytes, source: str, folder: Path) -> tuple[Entry, ...]:
    """Validate a fleet file's text; see `load`.

    Args:
        data: the text.
        source: its name, for messages.
        folder: where relative paths start.
    """
    if len(data) > MAX_BYTES:
        raise _invalid(f"is larger than {MAX_BYTES:,} bytes", source, "")
    try:
        document = msgspec.toml.decode(data)
        _require_keys(document, source)
        entries = msgspec.convert(document.get("mirror", ()), tuple[Entry, ...])
    except msgspec.ValidationError as error:
        raise _wrong(str(error), source) from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _invalid(f"is no valid TOML: {error}", source, "") from error
    if not entries:
        raise _invalid("has no [[mirror]]", source, "")
    placed = tuple(_placed(each, folder, source, n) for n, each in enumerate(entries))
    _require_apart(placed, source)
    return placed


def run(
    entries: tuple[Entry, ...], *, dry_run: bool = False, no_network: bool = False
) -> Iterator[Result]:
    """Make the mirrors one by one; an entry that fails is reported and the next one is made.

    Raises:
        InterruptedError_: a signal came; what was made before stays, whole.
    """
    for entry in entries:
        try:
            yield _made(entry, dry_run=dry_run, no_network=no_network)
        except InterruptedError_:
            raise
        except CkptPatchError as error:
            yield Result(entry, "failed", error=error)


def _made(entry: Entry, *, dry_run: bool, no_network: bool) -> Result:
    target = entry.launch()
    checkpoint = open_checkpoint(entry.source, no_network=no_network)
    made = plan(checkpoint, target, entry.recipe)
    if dry_run:
        mirroring.foresee(checkpoint, made, entry.destination, entry.link)
        return Result(entry, "dry-run", made)
    checkpoint, made = sources.downloaded(checkpoint, made, entry.recipe)
    prepared = mirroring.prepare(checkpoint, made, entry.destination, entry.link)
    return Result(entry, mirroring.make(prepared).outcome, made)


def _placed(entry: Entry, folder: Path, source: str, number: int) -> Entry:
    """The entry with its paths, looked at from where the file is."""
    for key in ("source", "destination"):
        text = getattr(entry, key)
        if not text or not text.isprintable() or text.startswith("~"):
            raise _invalid(
                f"{text!a} is no path (~ is not expanded)", source, f"/mirror/{number}/{key}"
            )
    if entry.destination.startswith(("hf:", "hub:", "https:")):
        raise _invalid("must be a directory", source, f"/mirror/{number}/destination")
    try:
        entry.launch()
    except CkptPatchError as error:
        raise _invalid(f"{error.message}", source, f"/mirror/{number}") from error
    return replace(
        entry,
        source=_source(entry.source, folder),
        destination=os.path.join(folder, entry.destination),
    )


def _source(text: str, folder: Path) -> str:
    """A directory comes first, as on the command line; here it is looked for beside the file."""
    path = os.path.join(folder, text)
    hub_id = None if os.path.lexists(path) else hub.parse(text)
    return f"hf://{hub_id}" if hub_id else path


def _require_keys(document: dict[str, Any], source: str) -> None:
    """Refuse the schema of another version, and every key that would be passed over in silence."""
    schema = document.get("schema", SCHEMA)
    if schema != SCHEMA:
        raise _invalid(f"is {schema!a}, expected {SCHEMA!r}", source, "/schema")
    _require_known(document, {"schema", "mirror"}, source, "")
    rows = document.get("mirror")
    known = set(Entry.__struct_fields__)
    for number, row in enumerate(rows if isinstance(rows, list) else ()):
        _require_known(row, known, source, f"/mirror/{number}")


def _require_known(row: Any, known: set[str], source: str, pointer: str) -> None:
    unknown = sorted(set(row) - known) if isinstance(row, dict) else []
    if unknown:
        names = ", ".join(sorted(known))
        raise _invalid(f"this key is unknown; known: {names}", source, f"{pointer}/{unknown[0]}")


def _require_apart(entries: tuple[Entry, ...], source: str) -> None:
    """No mirror may be inside another one."""
    places = [os.path.realpath(entry.destination) for entry in entries]
    for number, place in enumerate(places):
        for other in places[:number]:
            if inside(place, other) or inside(other, place):
                message = f"is the same as that of another mirror, or one is in the other: {other}"
                raise _invalid(message, source, f"/mirror/{number}/destination")


def _wrong(message: str, source: str) -> UnreadableError:
    """From the place that msgspec names at the end, ``$[0].link``, to a pointer."""
    found = _PLACE.match(message)
    if found is None:
        return _invalid(message, source, "/mirror")
    pointer = re.sub(r"[.\[]", "/", found["path"].replace("]", ""))
    return _invalid(found["message"], source, f"/mirror{pointer}")


def _invalid(message: str, source: str, pointer: str) -> UnreadableError:
    return UnreadableError(
        message,
        path=source,
        pointer=pointer or None,
        hint=f"correct it, then look at what it would make: "
        f"ckpt-patch mirror --dry-run --plan {'-' if source == STANDARD_INPUT else quoted(source)}",
    )
