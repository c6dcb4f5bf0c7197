"""``python -m patcher.engines.extract.support``: writes docs/support.md and README's section.

Everything on the page is asked of the packaged facts at that moment; tests/engines/test_support.py
compares the files with what is written here.
"""

from __future__ import annotations

import os
import sys
from itertools import groupby
from typing import TYPE_CHECKING

from patcher import engines, gpus
from patcher.engines import differences, examples
from patcher.engines.facts import provenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from patcher.gpus import Gpu

ROOT = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, os.pardir)
PAGE = os.path.join("docs", "support.md")
README = "README.md"
COMMAND = "python -m patcher.engines.extract.support"
START, END = f"<!-- generated: {COMMAND} -->", "<!-- end of generated -->"
#: The values of the flag that the page shows, if the release has them.
FLAGS = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4")
#: Whose history is shown: what the most checkpoints declare.
STATEMENT = "ModelOpt kv_cache_scheme FP8"
#: TensorRT-LLM's backends were not read, so there is no table of them.
TABLES = ("vllm", "sglang")


def section() -> str:
    """The lines between README's markers."""
    return "\n".join(_table(("engine", "releases", "newest", "how it is known"), _summary())) + "\n"


def page() -> str:
    """The text of docs/support.md."""
    return "\n".join(_page()) + "\n"


def _summary() -> Iterator[tuple[str, ...]]:
    for engine, name in engines.NAMES.items():
        known = engines.releases(engine)
        rows = [row for row in provenance.packaged(engine) if row.release in known]
        first, last = rows[0], rows[-1]
        how = {row.how: provenance.MEANINGS[row.how].partition(";")[0] for row in rows}
        span = f"{len(rows)}, {first.release} to {last.release}"
        yield name, span, last.date or "-", "; ".join(how.values())


def _page() -> Iterator[str]:
    yield "# What is known about which release"
    yield ""
    yield f"Written by `{COMMAND}` from the facts; not to be edited."
    yield ""
    yield from _table(("engine", "releases", "newest", "how it is known"), _summary())
    yield ""
    yield "Attention kinds are those of `ckpt-patch matrix`: head size 128 and 256 as in Llama and"
    yield "Gemma, `gqa-64-sinks` as in gpt-oss, `mla-dense-576` as in DeepSeek-V3 and Kimi-K2,"
    yield "`mla-sparse-576` as in DeepSeek-V3.2. GPUs with the same answers share a row; `-` means"
    yield "that the engine refuses to start, `?` that the facts have no answer."
    for engine in TABLES:
        yield from _newest(engine)
        yield from _history(engine)
    yield from _every_release()


def _newest(engine: str) -> Iterator[str]:
    release = engines.releases(engine)[-1]
    known = engines.flag_values(engine, release)
    flags = tuple(flag for flag in FLAGS if flag in known)
    yield ""
    yield f"## {engines.NAMES[engine]} {release}: attention backend by `--kv-cache-dtype`"
    yield ""
    head = ("GPU", "attention", *(f"`{flag}`" for flag in flags))
    answers = (
        (gpu, (kind, *(_cell(engine, release, gpu, kind, flag) for flag in flags)))
        for kind in examples.KINDS
        for gpu in gpus.gpus()
    )
    yield from _table(head, _grouped(answers))


def _cell(engine: str, release: str, gpu: Gpu, kind: str, flag: str) -> str:
    found = differences.outcome(engine, release, gpu, kind, flag=flag)
    if found.starts is None:
        return "?"
    if not found.starts:
        return "-"
    changed = found.kv_cache_dtype not in {flag, "auto"}
    held = f" (holds {found.kv_cache_dtype})" if changed else ""
    return f"{found.backend or 'chosen later'}{held}"


def _history(engine: str) -> Iterator[str]:
    yield ""
    yield f"## {engines.NAMES[engine]}: what becomes of {STATEMENT} in config.json"
    yield ""
    answers = (
        (gpu, (kind, _runs(engine, gpu, kind))) for kind in examples.KINDS for gpu in gpus.gpus()
    )
    yield from _table(("GPU", "attention", "release by release"), _grouped(answers))


def _runs(engine: str, gpu: Gpu, kind: str) -> str:
    """Neighbouring releases with the same answer in one word."""

    def answer(release: str) -> str:
        return str(differences.outcome(engine, release, gpu, kind, statement=STATEMENT))

    runs = ((text, list(group)) for text, group in groupby(engines.releases(engine), key=answer))
    spans = [
        (group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}", text)
        for text, group in runs
    ]
    return "; ".join(f"{span}: {text}" for span, text in spans)


def _grouped(answers: Iterable[tuple[Gpu, tuple[str, ...]]]) -> Iterator[tuple[str, ...]]:
    """One row for all GPUs with equal cells; those without any answer are left out."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for gpu, cells in answers:
        groups.setdefault(cells, []).append(gpu.name)
    for cells, names in groups.items():
        if not _is_unknown(cells[1:]):
            yield (" ".join(names), *cells)


def _is_unknown(cells: tuple[str, ...]) -> bool:
    """Some cells have no answer and the others say nothing: the GPU is not covered."""
    return set(cells) in ({"?"}, {"?", "-"}) or all(cell.endswith(": unknown") for cell in cells)


def _every_release() -> Iterator[str]:
    yield ""
    yield "## Every release"
    for engine, name in engines.NAMES.items():
        rows = provenance.packaged(engine)
        listed = ", ".join(f"{row.release} ({row.date or 'no date'}, {row.how})" for row in rows)
        yield ""
        yield f"{name}: {listed}."


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def between_markers(text: str) -> str:
    """``text`` with a fresh section; as it is where the markers are missing."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    return f"{before}{start}\n{section()}{end}{after}" if start and end else text


def write(root: str = ROOT) -> None:
    """Write the page, and README's section if it has the markers."""
    with open(os.path.join(root, PAGE), "w", encoding="utf-8") as file:
        file.write(page())
    path = os.path.join(root, README)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if (fresh := between_markers(text)) != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(fresh)


if __name__ == "__main__":
    write()
    sys.stderr.write(f"{PAGE} and {README} are up to date\n")
