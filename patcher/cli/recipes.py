"""``ckpt-patch recipes``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from patcher import recipes
from patcher.cli.options import output_options
from patcher.report.human import columns

if TYPE_CHECKING:
    from patcher.cli.output import Output


@click.group(invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int | None:
    """List, show or validate recipes."""
    if ctx.invoked_subcommand is None:
        return ctx.invoke(list_) or 0
    return None


@command.command("list")
@output_options()
def list_(out: Output) -> None:
    """List the recipes that come with the tool."""
    known = recipes.packaged().values()
    if out.format == "json":
        rows = [
            {"id": recipe.id, "version": recipe.version, "title": recipe.title} for recipe in known
        ]
        out.document({"schema": "ckpt-patch/recipes@1", "recipes": rows})
    elif out.format == "quiet":
        out.answer(recipe.id for recipe in known)
    else:
        out.answer(columns((f"{recipe.id}@{recipe.version}", recipe.title) for recipe in known))


@command.command()
@click.argument("name")
@output_options()
def show(out: Output, name: str) -> None:
    """Show one recipe: what it changes and why."""
    recipe = recipes.find(name)
    if out.format == "json":
        document: dict[str, object] = to_builtins(recipe)
        del document["text"]
        digest = {"sha256": recipe.sha256}
        out.document({"schema": "ckpt-patch/recipe-shown@1", **document, **digest})
        return
    out.answer(f"{recipe.id}@{recipe.version}  {recipe.title}")
    out.answer(f"Effect: {recipe.effect}.")
    out.answer(["", recipe.notes.strip(), ""])
    for rule in recipe.rules:
        if rule.action == "restore":
            out.answer("restore  a deleted required key, as null")
        else:
            value = "off" if rule.action == "turn-off" else repr(rule.value)
            out.answer(f"{rule.action}  {', '.join(rule.meanings)} -> {value}")
            out.answer(f"         statements of: {', '.join(rule.producers)}")


@command.command()
@click.argument("path", type=click.Path(path_type=Path))
@output_options()
def validate(out: Output, path: Path) -> None:
    """Validate a recipe file; exit 4 and the reason when it is not one."""
    recipe = recipes.load(path)
    if out.format == "json":
        out.document({"schema": "ckpt-patch/recipe-valid@1", "id": recipe.id, "valid": True})
    elif out.format != "quiet":
        out.answer(f"{path}: a valid recipe, {recipe.id}@{recipe.version}")
