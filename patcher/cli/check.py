"""``ckpt-patch check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.checking import check
from patcher.cli.options import gravest, opened, output_options, parse_targets, target_options
from patcher.cli.output import error_document
from patcher.errors import CkptPatchError
from patcher.report import human

if TYPE_CHECKING:
    from patcher.cli.output import Output
    from patcher.target import Target
    from patcher.verdict import Verdict

CODES = {"compatible": 0, "conflict": 1, "unknown": 4}


@click.command(
    epilog="Exit codes: 0 compatible, 1 conflict, 4 cannot judge. "
    "Example: ckpt-patch check --target sm120 --engine vllm==0.16.0 ./Kimi-K2.5-NVFP4"
)
@click.argument("checkpoints", metavar="CKPT...", nargs=-1, type=click.Path())
@target_options
@click.option("--strict", is_flag=True, help="Warnings count as conflicts (exit 1).")
@click.option("--full", is_flag=True, help="Check the header of every shard too.")
@click.option("--exit-zero", is_flag=True, help="Exit 0 on conflicts and warnings.")
@output_options("markdown", "github")
def command(
    out: Output,
    checkpoints: tuple[str, ...],
    strict: bool,
    full: bool,
    exit_zero: bool,
    **launch: Any,
) -> int:
    """Say what checkpoints will do on a GPU, before anything is loaded."""
    targets = parse_targets(**launch)
    runs = [(path, target) for path in checkpoints or (".",) for target in targets]
    several = len(runs) > 1
    documents, codes = [], []
    for path, target in runs:
        try:
            verdict = check(opened(out, path), target, full=full)
        except CkptPatchError as error:
            if not several:
                raise
            documents.append(error_document(error) | {"path": path})
            codes.append(_failed(out, path, error))
            continue
        documents.append(verdict.to_dict())
        codes.append(_code(verdict, strict=strict, exit_zero=exit_zero))
        _show(out, verdict, path, target, several=several)
    if out.format == "json":
        many = {"schema": "ckpt-patch/checks@1", "results": documents}
        out.document(many if several else documents[0])
    return gravest(codes)


def _failed(out: Output, path: str, error: CkptPatchError) -> int:
    out.note(f"{path}:")
    if out.format == "json":
        out.note(f"Error: {error}")
        return error.exit_code
    return out.error(error)


def _code(verdict: Verdict, *, strict: bool, exit_zero: bool) -> int:
    code = CODES[verdict.outcome]
    if code == 0 and strict and any(item.severity == "warning" for item in verdict.findings):
        code = 1
    return 0 if code == 1 and exit_zero else code


def _show(out: Output, verdict: Verdict, path: str, target: Target, *, several: bool) -> None:
    if out.format == "human":
        out.answer(human.verdict(verdict, out.style, verbose=out.verbose))
        if several:
            out.answer("")
    elif out.format == "quiet":
        words = [finding.id for finding in verdict.findings if finding.severity != "info"]
        prefix = f"{path} {target.gpu.name}: " if several else ""
        out.answer(prefix + " ".join([verdict.outcome, *dict.fromkeys(words)]))
    elif out.format == "markdown":
        from patcher.report import markdown  # noqa: PLC0415 - lazy: one format of five

        out.answer("\n".join(markdown.verdict_section("Verdict", verdict)))
    elif out.format == "github":
        from patcher.report import github  # noqa: PLC0415 - lazy: one format of five

        out.answer(github.workflow_commands(verdict, path))
