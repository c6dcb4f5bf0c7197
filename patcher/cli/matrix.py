"""``ckpt-patch matrix``."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, TypeVar

import click

from patcher import gpus
from patcher.cli.options import output_options, parse_targets
from patcher.engines import NAMES
from patcher.errors import UsageError
from patcher.matrix import matrix
from patcher.matrix.vllm import VllmRow
from patcher.report.escape import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.cli.output import Output
    from patcher.matrix import Matrix
    from patcher.matrix.sglang import SglangRow
    from patcher.report.human import Style

    #: Value of ``--kv-cache-dtype`` -> what runs.
    Answers = dict[str, str]

Value = TypeVar("Value")

WIDTH = 100
NOTHING = "-"
_HELD = {"auto": "the model's dtype"}


@click.command(epilog="Example: ckpt-patch matrix --engine vllm==0.33.0 --target sm120")
@click.option(
    "-t",
    "--target",
    "names",
    multiple=True,
    help="GPU, as for check; may be repeated. Without it: every GPU that is covered.",
)
@click.option("-e", "--engine", show_envvar=True, help="vllm==0.33.0, sglang==0.5.23, ...")
@click.option("--backend", help="The attention backend asked for at launch.")
@output_options()
def command(out: Output, names: tuple[str, ...], engine: str | None, backend: str | None) -> None:
    """Show which attention backend of an engine release runs which KV-cache dtype."""
    # Without a GPU, any one serves to read the other options.
    targets = [
        target
        for name in names or (gpus.gpus()[0].name,)
        for target in parse_targets(name, engine, backend, "auto")
    ]
    asked = targets[0]
    if asked.engine is None:
        raise UsageError(
            "no engine is named, and none is installed here",
            hint="ckpt-patch matrix --engine vllm==0.33.0; known releases: ckpt-patch engines",
        )
    table = matrix(
        asked.engine,
        asked.version,
        on=tuple(target.gpu for target in targets) if names else (),
        attention_backend=asked.attention_backend,
    )
    if out.format == "json":
        out.document(table.to_dict())
    elif out.format == "quiet":
        out.answer(" ".join((*_question(row), _answer(row))) for row in table.rows)
    else:
        out.answer(_lines(table, out.style))


def _lines(table: Matrix, style: Style) -> Iterator[str]:
    launch = f" with --attention-backend {table.attention_backend}"
    yield (
        f"{NAMES[table.engine]} {plain(table.version)}{launch if table.attention_backend else ''}: "
        f"attention backend, and the KV-cache dtypes it runs"
    )
    yield from (f"note  {plain(note)}" for note in table.notes)
    shown = [row for row in table.rows if _is_shown(row, table.attention_backend)]
    answers: dict[str, dict[str, Answers]] = {}
    for row in shown:
        gpu, *kind, dtype = _question(row)
        answers.setdefault(gpu, {}).setdefault(" ".join(kind), {})[dtype] = _answer(row)
    sections = {gpu: _merged(kinds) for gpu, kinds in answers.items()}
    for names, kinds in _grouped(sections):
        yield ""
        heading = ", ".join(f"{name} ({gpus.find(name).summary})" for name in names)
        yield from (style("bold", line) for line in textwrap.wrap(heading, WIDTH))
        for labels, dtypes in _grouped(kinds):
            yield from textwrap.wrap(
                ", ".join(labels), WIDTH, initial_indent="  ", subsequent_indent="  "
            )
            yield from _backends(dtypes)
    yield ""
    yield f"{NOTHING} means that the engine refuses to start; its words are in --json."
    if table.engine == "sglang":
        yield "Two backends are those of prefill and decode."
    if table.attention_backend is None:
        yield "No backend is asked for at launch; to ask for one: --backend NAME."


def _backends(dtypes: Answers) -> Iterator[str]:
    """One paragraph for each backend, its dtypes wrapped; what is refused goes last."""
    names = sorted(
        dict.fromkeys(dtypes.values()), key=lambda name: (name[:1] == NOTHING, name == NOTHING)
    )
    width = max(map(len, names))
    for name in names:
        values = ", ".join(dtype for dtype, answer in dtypes.items() if answer == name)
        values = values if len(names) > 1 else "every value"
        start = f"    {name.ljust(width)}  "
        yield from textwrap.wrap(
            values, WIDTH, initial_indent=start, subsequent_indent=" " * len(start)
        )


def _is_shown(row: VllmRow | SglangRow, backend: str | None) -> bool:
    if isinstance(row, VllmRow):
        return True
    return (row.attention_backend_flag, row.decode_flag) == (backend, None)


def _question(row: VllmRow | SglangRow) -> tuple[str, ...]:
    """GPU, kind of model, and last the KV-cache dtype."""
    if isinstance(row, VllmRow):
        return row.gpu, row.attention, row.dtype, row.kv_cache_dtype
    return row.cap, row.model, *_flags(row), row.kv_flag


def _flags(row: SglangRow) -> Iterator[str]:
    if row.attention_backend_flag:
        yield f"--attention-backend={row.attention_backend_flag}"
    if row.decode_flag:
        yield f"--decode-attention-backend={row.decode_flag}"


def _answer(row: VllmRow | SglangRow) -> str:
    """What runs, and what the cache holds where that is not what was asked for."""
    if isinstance(row, VllmRow):
        name, held, asked = row.layer.backend, row.layer.kv_cache_dtype, row.kv_cache_dtype
        if not row.layer.accepts:
            refuses = row.selected and row.layer.error != row.error
            return f"{NOTHING} ({row.selected} refuses)" if refuses else NOTHING
    else:
        name, held, asked = " + ".join(row.result.backends), row.result.kv_cache_dtype, row.kv_flag
        if not row.result.ok:
            return NOTHING
        if row.result.stopped:
            return f"{NOTHING} ({name} refuses)"
    changed = "" if held in {asked, None} else f" (holds {_HELD.get(held or '', held)})"
    return f"{name or 'chosen later'}{changed}"


def _merged(kinds: Mapping[str, Answers]) -> dict[str, Answers]:
    """``gqa-64`` for the rows of vLLM whose answers are the same for every dtype of the model."""
    families: dict[str, dict[str, Answers]] = {}
    for label, answers in kinds.items():
        families.setdefault(label.split()[0], {})[label] = answers
    merged = {}
    for family, members in families.items():
        same = len(_grouped(members)) == 1
        merged.update({family: next(iter(members.values()))} if same else members)
    return merged


def _grouped(items: Mapping[str, Value]) -> list[tuple[list[str], Value]]:
    """The names of equal values together, in the order in which the values come up."""
    groups: list[tuple[list[str], Value]] = []
    for name, value in items.items():
        names = next((names for names, other in groups if other == value), None)
        if names is None:
            groups.append(([name], value))
        else:
            names.append(name)
    return groups
