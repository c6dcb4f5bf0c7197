"""Verdicts for people at a terminal: facts first, aligned, no colour needed to read them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from patcher.engines import NAMES
from patcher.report.escape import plain, value
from patcher.target import command_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from patcher.metadata.declarations import Declaration
    from patcher.verdict import Cure, Finding, Verdict

MARKS = {"error": "x", "warning": "!", "info": "-"}
ATTENTION = {
    "gqa": "GQA",
    "mla": "MLA",
    "sparse-mla": "sparse MLA",
    "attention-free": "attention-free",
    "unknown": "unknown attention",
}
#: How much of an engine's own error is shown without -v, in characters.
DETAIL = 180
#: A command longer than this has a line of its own, in characters.
WIDE = 160
_CODES = {"error": "31", "warning": "33", "ok": "32", "bold": "1", "dim": "2"}


class Style(Struct, frozen=True):
    """Colour, if any. Never the only carrier of a meaning."""

    color: bool = False

    def __call__(self, kind: str, text: str) -> str:
        """``text`` in the colour of ``kind``."""
        code = _CODES.get(kind)
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code else text


def columns(rows: Iterable[tuple[str, ...]], indent: str = "") -> Iterator[str]:
    """Left-aligned columns, two spaces apart."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield indent + "  ".join(cells).rstrip()


def number(amount: float) -> str:
    """``70272.0`` as ``70,272``."""
    return f"{amount:,.0f}"


def verdict(result: Verdict, style: Style, *, verbose: bool = False) -> Iterator[str]:
    """The whole answer of ``check``, line by line."""
    yield from columns((("Checkpoint", _checkpoint(result)), ("Target", target(result))))
    yield ""
    shown = [item for item in result.findings if verbose or item.severity != "info"]
    for finding in shown:
        yield from _finding(result, finding, style, verbose=verbose)
    if result.outcome == "compatible":
        yield f"{style('ok', 'ok')}  {_sentence(result)}"
    if verbose or (result.outcome == "conflict" and result.judgement.backends):
        yield from _backends(result)
    yield from (f"note  {plain(note)}" for note in result.judgement.notes)
    yield from _cures(result, style)
    yield from _cost(result)
    hidden = len(result.findings) - len(shown)
    more = f" {hidden} more with -v." if hidden else ""
    yield f"{_summary(result, style)} No weights were read or changed.{more}"


def _checkpoint(result: Verdict) -> str:
    model = result.model
    parts = [
        plain(model.model_type or "unknown model type"),
        f"{ATTENTION[model.attention]}" + (f" {model.head_size}" if model.head_size else ""),
    ]
    if model.layers:
        hybrid = f" ({model.attention_layers} with attention)" if model.hybrid else ""
        parts.append(f"{model.layers} layers{hybrid}")
    if model.dtype:
        parts.append(plain(model.dtype))
    evidence = result.judgement.evidence
    if evidence and evidence.tensors:
        parts.append(f"{evidence.shards} shards, {number(evidence.tensors)} tensors")
    return f"{plain(os.path.basename(result.path))}  {', '.join(parts)}"


def target(result: Verdict) -> str:
    """GPU and engine in words, and the launch as far as it was given."""
    gpu = result.target.gpu
    engine = result.target.engine
    if engine is None:
        named = "no engine named: every known vLLM release is asked"
    elif result.target.version is None:
        named = f"every known {NAMES[engine]} release is asked"
    else:
        named = f"{NAMES[engine]} {plain(result.target.version)}"
    where = {"gpu": None, "engine": None, "version": None}
    launch = plain(command_line({**result.target.to_dict(), **where}))
    return ", ".join(filter(None, (f"{gpu.name} ({gpu.summary})", named, launch)))


def _sentence(result: Verdict) -> str:
    """What happens, when nothing is wrong."""
    if result.resolution is None:
        return "No known release refuses what this checkpoint declares on this GPU."
    dtype = result.resolution.kv_cache_dtype
    cache = "the model's dtype" if dtype == "auto" else dtype
    runs = f" with {result.judgement.selected}" if result.judgement.selected else ""
    return f"Starts{runs}; the KV cache holds {cache} ({_because(result)})."


def _because(result: Verdict) -> str:
    assert result.resolution is not None
    decided = result.resolution.decided_by
    if isinstance(decided, str):
        return f"decided by the {decided}" if decided != "flag" else "decided by the launch flag"
    return f"decided by {decided.file}:{plain(decided.pointer)}"


def _finding(result: Verdict, finding: Finding, style: Style, *, verbose: bool) -> Iterator[str]:
    mark = style(finding.severity, MARKS[finding.severity])
    yield f"{mark} {finding.id}  {plain(finding.message)}"
    known = {(item.file, item.pointer): item for item in result.declarations}
    rows = []
    for place in finding.locations:
        item = known.get((place.file, place.pointer))
        said = "" if item is None else f"= {value(item.value)}"
        rows.append(
            (f"{plain(place.file)}:{place.line}", plain(place.pointer), said, _role(result, item))
        )
    if rows:
        yield from columns(rows, "   ")
    if finding.detail:
        text = plain(finding.detail)
        cut = len(text) > DETAIL and not verbose
        yield f"   You would see: {text[:DETAIL] + '...' if cut else text}"


def _role(result: Verdict, item: Declaration | None) -> str:
    if item is None or result.resolution is None:
        return ""
    decided = result.resolution.decided_by
    if not isinstance(decided, str) and (decided.file, decided.pointer) == (
        item.file,
        item.pointer,
    ):
        return "decides"
    return "read" if result.was_read(item) else "not read"


def _backends(result: Verdict) -> Iterator[str]:
    if not result.judgement.backends:
        return
    dtype = result.resolution.kv_cache_dtype if result.resolution else "auto"
    yield f"   Attention backends, best first, for kv_cache_dtype {dtype}{_means(result)}:"
    yield from columns(
        (
            (item.name, "accepts" if item.accepts else "; ".join(map(plain, item.reasons)))
            for item in result.judgement.backends
        ),
        "     ",
    )


def _means(result: Verdict) -> str:
    """Why the flag's default does not help."""
    from_files = result.resolution and not isinstance(result.resolution.decided_by, str)
    if result.target.kv_cache_dtype == "auto" and from_files:
        return " (--kv-cache-dtype auto means: ask the checkpoint)"
    return ""


def _cures(result: Verdict, style: Style) -> Iterator[str]:
    if result.outcome != "conflict" and not result.cures and not result.is_failing:
        return
    yield ""
    patched = any(cure.kind == "patch" for cure in result.cures)
    if result.overruled and not patched:
        yield f"{result.overruled[0].upper()}{result.overruled[1:]}."
    if not result.cures:
        yield "No flag, no known later release and no edit of these files helps here."
        return
    yield style("bold", "Fix one of:" if result.outcome == "conflict" else "To avoid that:")
    rows = [(cure_command(cure, result), _effect(cure)) for cure in result.cures]
    width = max((len(command) for command, _ in rows if len(command) <= WIDE), default=0)
    for index, (command, effect) in enumerate(rows, 1):
        gap = "  " if len(command) <= WIDE else "\n      "
        yield f"  {index}.  {command.ljust(width)}{gap}{effect}"


def _effect(cure: Cure) -> str:
    counted = f"{cure.edits} values change; " if cure.kind == "patch" else ""
    return counted + plain(cure.effect)


def cure_command(cure: Cure, result: Verdict) -> str:
    """What to type; the engine's own command for a flag."""
    serve = {"vllm": "vllm serve", "sglang": "sglang serve", "trtllm": "trtllm-serve"}
    commands: dict[str, Callable[[], str]] = {
        "flag": lambda: f"{serve[result.target.engine or 'vllm']} ... {shell_words(cure.argv)}",
        "upgrade": lambda: f"pip install '{cure.engine}{cure.version}'",
        "patch": lambda: apply_command(result, cure.recipe),
    }
    return commands[cure.kind]()


def apply_command(result: Verdict, recipe: str | None = None) -> str:
    """The command line that applies the patch which this verdict is about."""
    is_remote = result.origin.get("origin") == "hub"
    command = "ckpt-patch mirror" if is_remote else "ckpt-patch apply"
    words = [command, plain(command_line(result.target.to_dict()))]
    patches = [cure.recipe for cure in result.cures if cure.kind == "patch"]
    if recipe and (result.outcome != "conflict" or recipe != next(iter(patches), recipe)):
        words.append(f"--recipe {recipe}")
    return " ".join([*words, shell_path(result.path), *(["DEST"] if is_remote else [])])


def shell_path(path: str) -> str:
    """The path as a shell takes it, relative where it is below the current directory."""
    import shlex  # noqa: PLC0415 - lazy: only refusals and conflicts print commands

    return plain(shlex.quote(path.removeprefix(os.path.join(os.getcwd(), ""))))


def shell_words(argv: tuple[str, ...]) -> str:
    """Arguments as a shell takes them."""
    import shlex  # noqa: PLC0415 - see shell_path

    return plain(shlex.join(argv))


def _cost(result: Verdict) -> Iterator[str]:
    before, after = result.cost.before, result.cost.after
    if before is None or after is None:
        return
    yield ""
    if before == after:
        yield f"KV cache: {number(before)} bytes per token."
    else:
        yield (
            f"KV cache: {number(before)} bytes per token as declared, "
            f"{number(after)} with KV quantization off."
        )


def _summary(result: Verdict, style: Style) -> str:
    kinds = {"compatible": "ok", "conflict": "error", "unknown": "warning"}
    return style(kinds[result.outcome], result.outcome) + "."
