"""The options that commands share, and the frame in which every command runs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from patcher.checkpoint import open_checkpoint
from patcher.cli.output import Output, use_color
from patcher.errors import CkptPatchError, UsageError
from patcher.report.escape import plain
from patcher.report.human import Style

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patcher.checkpoint import Checkpoint
    from patcher.target import Target

    Command = Callable[..., Any]

#: Gravest first: the exit code of a run over several checkpoints.
GRAVITY = (6, 5, 70, 3, 4, 1, 0)


def gravest(codes: Sequence[int]) -> int:
    """The one exit code that stands for several."""
    return min(codes, key=GRAVITY.index, default=0)


def checkpoint_argument(function: Command) -> Command:
    """One checkpoint; the current directory when it is not named."""
    return click.argument("checkpoint", metavar="CKPT", default=".", type=click.Path())(function)


def network_option(function: Command) -> Command:
    """``--no-network``, which `opened` obeys."""
    return click.option(
        "--no-network",
        is_flag=True,
        expose_value=False,
        callback=_keep,
        help="Of a Hub id, use what the cache has; as HF_HUB_OFFLINE=1.",
    )(function)


def _keep(context: click.Context, option: click.Parameter, value: bool) -> None:
    context.meta[f"ckpt-patch.{option.name}"] = value


def opened(
    out: Output, path: str, opener: Callable[..., Checkpoint] = open_checkpoint
) -> Checkpoint:
    """Open a checkpoint of the command line, and say what was decided for the user."""
    no_network = click.get_current_context().meta.get("ckpt-patch.no_network", False)
    checkpoint = opener(path, no_network=no_network)
    for note in checkpoint.origin.notes:
        out.note(f"Note: {plain(note)}.")
    return checkpoint


def target_options(function: Command) -> Command:
    """GPU, engine and launch, and whether there is a network."""
    for option in reversed(
        (
            click.option(
                "-t",
                "--target",
                default="auto",
                show_default=True,
                show_envvar=True,
                help="GPU: sm120, 12.0, rtx-pro-6000, h100, gfx942, ...; auto asks nvidia-smi.",
            ),
            click.option(
                "-e",
                "--engine",
                show_envvar=True,
                help="vllm==0.16.0, sglang==0.5.23, trtllm==1.2.0, or auto for the installed one.",
            ),
            click.option("--backend", help="The attention backend asked for at launch."),
            click.option(
                "--decode-backend",
                "--decode-attention-backend",
                "decode_backend",
                help="SGLang: the backend asked for decoding alone.",
            ),
            click.option(
                "--kv-cache-dtype",
                default="auto",
                show_default=True,
                help="The engine's own launch flag, if it is used.",
            ),
            network_option,
        )
    ):
        function = option(function)
    return function


def one_target(command: str, path: str, launch: dict[str, Any]) -> Target:
    """The target of a command that makes a patch.

    Raises:
        UsageError: ``auto`` finds several kinds of GPU, and a patch is for one.
    """
    targets = parse_targets(**launch)
    if len(targets) > 1:
        names = ", ".join(target.gpu.name for target in targets)
        raise UsageError(
            f"several kinds of GPU are here ({names}), and a patch is for one",
            hint=f"ckpt-patch {command} --target {targets[0].gpu.name} {path}",
        )
    return targets[0]


def parse_targets(
    target: str,
    engine: str | None,
    backend: str | None,
    kv_cache_dtype: str,
    decode_backend: str | None = None,
) -> tuple[Target, ...]:
    """The targets of one command line: several where ``auto`` finds several kinds of GPU."""
    from patcher.target import Target  # noqa: PLC0415 - lazy: not every command has a target

    return Target.parse_all(
        target,
        engine=engine,
        attention_backend=backend,
        kv_cache_dtype=kv_cache_dtype,
        decode_attention_backend=decode_backend,
    )


def output_options(*formats: str) -> Callable[[Command], Command]:
    """``--json``, ``-q``, ``-v``, ``--color``, ``--debug``, and ``--format`` with more formats.

    The decorated function gets an ``Output`` as ``out`` and returns an exit code or ``None``.
    """

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def run(**options: Any) -> int:
            out = _output(options)
            debug = options.pop("debug")
            try:
                return function(out=out, **options) or 0
            except CkptPatchError as error:
                if debug:
                    raise
                return out.error(error)

        command: Command = run
        choices = click.Choice(("human", "json", "quiet", *formats))
        for option in (
            click.option("--debug", is_flag=True, help="Show a traceback on errors."),
            click.option(
                "--color",
                type=click.Choice(("auto", "always", "never")),
                default="auto",
                show_default=True,
                help="NO_COLOR and FORCE_COLOR are honoured.",
            ),
            click.option("-v", "--verbose", is_flag=True, help="Show everything that was read."),
            click.option("-q", "--quiet", is_flag=True, help="Print results only."),
            click.option("--json", "as_json", is_flag=True, help="Print JSON (stable, versioned)."),
            click.option("--format", "format_", type=choices, default="human", show_default=True),
        ):
            command = option(command)
        return command

    return decorate


def _output(options: dict[str, Any]) -> Output:
    chosen = options.pop("format_")
    as_json, quiet = options.pop("as_json"), options.pop("quiet")
    color, verbose = options.pop("color"), options.pop("verbose")
    if as_json:
        chosen = "json"
    elif quiet and chosen == "human":
        chosen = "quiet"
    return Output(chosen, verbose, Style(chosen == "human" and use_color(color)))
