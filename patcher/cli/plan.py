"""``ckpt-patch plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patcher import outfile
from patcher.cli import planned
from patcher.cli.options import checkpoint_argument, opened, output_options, target_options

if TYPE_CHECKING:
    from patcher.cli.output import Output


@click.command(epilog="Example: ckpt-patch plan --target sm120 -o plan.json ./Kimi-K2.5-NVFP4")
@checkpoint_argument
@target_options
@click.option("--recipe", help="A recipe by id or path, instead of the best one.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Save the plan for apply --plan."
)
@click.option("--exit-code", is_flag=True, help="Exit 1 when there is something to change.")
@output_options()
def command(
    out: Output,
    checkpoint: str,
    recipe: str | None,
    output: Path | None,
    exit_code: bool,
    **launch: Any,
) -> int:
    """Show what apply would do. Nothing is changed."""
    found = opened(out, checkpoint)
    plan = planned.make(found, recipe, launch)
    if output is not None:
        from patcher import saved_plan  # noqa: PLC0415 - lazy: only -o needs it

        outfile.write(output, saved_plan.dump(plan, found))
    if out.format == "json":
        out.document(plan.to_dict())
    elif out.format == "quiet":
        out.answer(edit.file for edit in plan.edits)
    elif not plan.edits:
        out.answer(planned.nothing(plan, found))
    else:
        out.answer(planned.values(plan))
        out.raw(plan.diff())
        out.answer(planned.scope(plan))
        out.answer("Nothing was changed.")
        if output is not None:
            out.answer(f"Plan saved. Apply it with: ckpt-patch apply --plan {output} {checkpoint}")
    return 1 if exit_code and plan.edits else 0
