"""``ckpt-patch mirror``: which kind of mirror is asked for."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from patcher import mirroring
from patcher.cli.options import output_options, target_options
from patcher.errors import UsageError
from patcher.report.human import shell_path

if TYPE_CHECKING:
    from patcher.cli.output import Output


class Asked(Struct, frozen=True):
    """The command line: one source, one place, and how."""

    source: str
    destination: str | None
    cache_revision: str | None
    recipe: str | None
    link: str
    passthrough: bool
    dry_run: bool
    private: bool
    config_only: bool
    launch: dict[str, Any]

    @property
    def place(self) -> str:
        """DEST.

        Raises:
            UsageError: there is none.
        """
        if self.destination is None:
            source = shell_path(self.source)
            raise UsageError(
                "says not where to: DEST is missing",
                path=self.source,
                hint=f"{self._example('directory')}\nor, of a snapshot in a Hub cache: "
                f"ckpt-patch mirror {source} --cache-revision patched-sm120",
            )
        return self.destination

    def _example(self, kind: str) -> str:
        name = os.path.basename(self.source.partition("@")[0].rstrip("/"))
        place = self.destination or f"{name}-patched"
        return EXAMPLES[kind].format(shell_path(self.source), shell_path(place))

    @property
    def kind(self) -> str:
        """What is to be made."""
        kinds = (
            ("config-only", self.config_only),
            ("cache-revision", self.cache_revision is not None),
            ("hub", (self.destination or "").startswith("hub://")),
        )
        return next((kind for kind, asked in kinds if asked), "directory")

    def require_only(self, *options: str) -> None:
        """No option may seem to have an effect that it has not.

        Raises:
            UsageError: an option of another kind of mirror was given.
        """
        given = {
            "--config-only": self.config_only,
            "--cache-revision": self.cache_revision is not None,
            "DEST": self.destination is not None,
            "--link": self.link != "auto",
            "--private": self.private,
        }
        wrong = [name for name, there in given.items() if there and name not in options]
        if wrong:
            raise UsageError(
                f"{WHAT[self.kind]} goes without {' and '.join(wrong)}",
                hint=self._example(self.kind),
            )


WHAT = {
    "config-only": "a folder for --hf-config-path (--config-only)",
    "cache-revision": "a revision in the Hub cache (--cache-revision)",
    "hub": "a mirror on the Hub",
    "directory": "a mirror in a directory",
}
EXAMPLES = {
    "config-only": "ckpt-patch mirror --config-only {} {}",
    "cache-revision": "ckpt-patch mirror {} --cache-revision patched-sm120",
    "hub": "ckpt-patch mirror {} {}",
    "directory": "ckpt-patch mirror {} {}",
}
#: The options that are no part of the target.
OWN = (
    "destination", "cache_revision", "recipe", "link", "passthrough", "dry_run", "private",
    "config_only",
)  # fmt: skip
#: Imported when they are asked for.
MODULES = {
    "config-only": "patcher.cli.mirror_config",
    "cache-revision": "patcher.cli.mirror_cache",
    "hub": "patcher.cli.mirror_hub",
    "directory": "patcher.cli.mirror_directory",
}


@click.command(
    epilog="Exit codes: 0 it is there, 3 refused and nothing written, 4 cannot judge, 5 failed and "
    'removed. Example: exec vllm serve "$(ckpt-patch mirror -q --target sm120 SRC DEST)"'
)
@click.argument("source", metavar="[SRC]", required=False, type=click.Path())
@click.argument("destination", metavar="[DEST]", required=False, type=click.Path())
@target_options
@click.option("--recipe", help="A recipe by id or path, instead of the best one.")
@click.option(
    "--link",
    type=click.Choice(tuple(mirroring.METHODS)),
    default="auto",
    show_default=True,
    help="How weights get there; auto tries reflink, hardlink, symlink, and never copies.",
)
@click.option("--passthrough", is_flag=True, help="If no patch is needed, print SRC; make nothing.")
@click.option("--dry-run", is_flag=True, help="Show the diff and what would be linked or copied.")
@click.option(
    "--cache-revision",
    metavar="NAME",
    help="Instead of DEST: a revision NAME of SRC's repository in the Hub cache.",
)
@click.option("--config-only", is_flag=True, help="Make a folder for vLLM's --hf-config-path.")
@click.option(
    "--plan", "plan_file", metavar="FILE", help="Make all mirrors of a TOML file; - is stdin."
)
@click.option("--private", is_flag=True, help="Create hub://OWNER/NAME as a private repository.")
@output_options()
def command(out: Output, source: str | None, plan_file: str | None, **words: Any) -> int | None:
    """Make a patched copy of SRC at DEST whose weights are links; SRC is not changed.

    DEST is a directory, or hub://OWNER/NAME: then the Hub copies the weights of the Hub id SRC.
    """
    if plan_file is not None:
        from patcher.cli import mirror_fleet  # noqa: PLC0415 - lazy: only --plan needs it

        return mirror_fleet.run(out, plan_file, dry_run=words["dry_run"])
    if source is None:
        raise UsageError("nothing to mirror", hint="ckpt-patch mirror --target sm120 SRC DEST")
    own = {name: words.pop(name) for name in OWN}
    asked = Asked(source=source, **own, launch=words)
    import_module(MODULES[asked.kind]).run(out, asked)
    return None
