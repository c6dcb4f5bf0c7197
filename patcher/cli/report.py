"""``ckpt-patch report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher import outfile
from patcher.cli import planned
from patcher.cli.options import checkpoint_argument, opened, output_options, target_options
from patcher.errors import UsageError
from patcher.report import markdown
from patcher.report.document import Report
from patcher.transaction import kept

if TYPE_CHECKING:
    from patcher.cli.output import Output

FORMATS = {".md": "report.md", ".json": "report.json"}


@click.command(
    epilog="Examples: ckpt-patch report -o report.md ./Kimi-K2.5-NVFP4 (what apply did); "
    "ckpt-patch report --target sm120 -o report.json ./Kimi-K2.5-NVFP4 (what it would do)"
)
@checkpoint_argument
@target_options
@click.option("--recipe", help="A recipe by id or path, instead of the best one.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="FILE.md or FILE.json; without it, Markdown to stdout.",
)
@output_options()
def command(
    out: Output, checkpoint: str, recipe: str | None, output: Path | None, **launch: Any
) -> None:
    """Write the diff report: of the patch that is applied, or of the one that would be."""
    name = _name(output, out)
    found = opened(out, checkpoint)
    named = click.get_current_context().get_parameter_source("target")
    asked = named is click.core.ParameterSource.COMMANDLINE
    data = None if asked else kept.attachment(found.root, name)
    if data is None:
        data = _made(planned.make(found, recipe, launch), name)
    if output is None:
        out.raw(data.decode())
    else:
        outfile.write(output, data)
        if out.format == "human":
            out.answer(f"Report written to {output}. No weights were read or changed.")


def _name(output: Path | None, out: Output) -> str:
    if output is None:
        return FORMATS[".json" if out.format == "json" else ".md"]
    if output.suffix not in FORMATS:
        raise UsageError(
            f"cannot tell the format from {output.name!r}", hint="end the name with .md or .json"
        )
    return FORMATS[output.suffix]


def _made(plan: Any, name: str) -> bytes:
    report = Report.of(plan)
    return report.to_json() if name == "report.json" else markdown.render(report)
