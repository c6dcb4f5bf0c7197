"""``ckpt-patch verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher import mirroring
from patcher.cli.mirror_directory import count
from patcher.cli.options import output_options
from patcher.hub import cache
from patcher.mirroring.manifest import HUB
from patcher.recipes import packaged
from patcher.report.escape import plain
from patcher.report.human import columns, shell_path
from patcher.target import command_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.cli.output import Output
    from patcher.mirroring import Verified

#: Problems of the mirror's own; all others are cured by making it anew.
THEIRS = {"edited", "added"}


@click.command(epilog="Exit codes: 0 all is as it was made, 1 something is not, 3 not a mirror.")
@click.argument("mirror", metavar="DEST", default=".", type=click.Path())
@click.option("--hash", "hashed", is_flag=True, help="Read all weights and compare their hashes.")
@output_options()
def command(out: Output, mirror: str, hashed: bool) -> int:
    """Say whether a mirror and its source are still as they were; reads no weights."""
    verified = mirroring.verify(mirror, hashed=hashed)
    if out.format == "json":
        out.document(verified.to_dict())
    elif out.format == "quiet":
        out.answer(f"{each.kind} {plain(each.file)}" for each in verified.problems)
    else:
        for sentence in verified.notes:
            out.note(f"Note: {plain(sentence)}.")
        out.answer(_lines(verified, hashed=hashed))
    return int(bool(verified.problems))


def _options(verified: Verified) -> str:
    """With what it was made."""
    manifest, name = verified.manifest, cache.name_of(verified.path)
    words = [command_line(manifest.target)]
    if manifest.recipe:
        known, recipe = packaged(), manifest.recipe["id"]
        words.append(f"--recipe {recipe if recipe in known else shell_path(f'{recipe}.toml')}")
    if manifest.scope == "config":
        words.append("--config-only")
    elif manifest.link not in {"auto", HUB} and name is None:
        words.append(f"--link {manifest.link}")
    words.append(shell_path(manifest.source.path))
    words.append(f"--cache-revision {name}" if name else shell_path(verified.path))
    return plain(" ".join(words))


def _lines(verified: Verified, *, hashed: bool) -> Iterator[str]:
    path = shell_path(verified.path)
    if verified.problems:
        rows = ((each.kind, plain(each.file), plain(each.message)) for each in verified.problems)
        yield from columns(rows)
        command = f"ckpt-patch mirror {_options(verified)}"
        if THEIRS.isdisjoint(each.kind for each in verified.problems) or cache.name_of(
            verified.path
        ):
            yield f"Make it anew: {command}"
        else:
            keep = f"mv {path} {path}.old"
            yield f"Make it anew, and keep what somebody did in it: {keep} && {command}"
    else:
        weights = (
            f"Weights whose hash is right: {count(verified.hashed)}."
            if hashed
            else "No weights were read."
        )
        yield f"{path}: as it was made, {count(len(verified.manifest.files))}. {weights}"
