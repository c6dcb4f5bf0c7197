"""The GPUs that can be a target: their names, their product names, and which of them are here.

A name is a name: gfx1100 has no compute capability that could be compared with 9.0, and sm120 never
counts as sm100. The data is ``data/gpus.json``, one GPU a line.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from patcher.errors import UsageError

if TYPE_CHECKING:
    import subprocess

_DATA = os.path.join(os.path.dirname(__file__), "data", "gpus.json")

#: ``sm120``, ``sm_120``, ``sm120a`` (architecture-specific code), ``12.0``. A bare ``100`` is none
#: of these: it may mean A100, H100 or sm100.
_ARCHITECTURE = re.compile(r"(?:sm[-_ ]?([0-9]{2,3})|([0-9]{1,2}\.[0-9]))[af]?")


class Gpu(Struct, frozen=True):
    """One kind of GPU, as the engines tell them apart.

    Attributes:
        name: canonical, ``"sm120"``, ``"gfx942"``, ``"xpu"`` or ``"cpu"``.
        vendor: ``"nvidia"``, ``"amd"``, ``"intel"``, or ``"cpu"``.
        capability: compute capability as the engines see it, ``"12.0"``; ``None`` where there is
            none (everything but NVIDIA).
        products: names that people know it by, lower case with hyphens.
        summary: its best-known products, for output.
    """

    name: str
    vendor: str
    capability: str | None
    products: tuple[str, ...]
    summary: str


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """All known GPUs, NVIDIA by capability, then AMD, then the rest."""
    import json  # noqa: PLC0415 - not needed for --help

    with open(_DATA, encoding="utf-8") as file:
        return tuple(Gpu(**{**row, "products": tuple(row["products"])}) for row in json.load(file))


def find(text: str) -> Gpu:
    """The GPU that ``text`` names: ``sm_120``, ``12.0``, ``RTX PRO 6000``, ``gfx942:xnack-``.

    A whole marketing name will do, as ``nvidia-smi`` prints it.

    Raises:
        UsageError: no GPU or more than one has that name.
    """
    key = text.strip().casefold()
    architecture = _ARCHITECTURE.fullmatch(key)
    if architecture:
        key = "sm" + (architecture[1] or architecture[2].replace(".", ""))
    found = _mentioned(key)
    if len(found) == 1:
        return found[0]
    if not found:
        _refuse_unknown(text)
    names = " or ".join(f"{gpu.name} ({gpu.summary})" for gpu in found)
    raise UsageError(f"{_shown(text)} is ambiguous: {names}", hint=f"--target {found[0].name}")


def detect(timeout: float = 0.2) -> tuple[Gpu, ...]:
    """The GPUs of this machine, each kind once, in the order of the tools that list them.

    Asks ``nvidia-smi`` and ``rocminfo`` if they are on PATH, each for at most ``timeout`` seconds.

    Raises:
        UsageError: none was found, or one is here that ``gpus()`` does not know.
    """
    import shutil  # noqa: PLC0415 - 5 ms, only for --target auto

    found: dict[Gpu, None] = {}
    problems = []
    for tool, arguments, names in _TOOLS:
        path = shutil.which(tool)
        if path is None:
            problems.append(f"{tool} is not on PATH")
            continue
        try:
            output = _run([path, *arguments], timeout)
        except UsageError as error:
            problems.append(f"{tool} {error.message}")
            continue
        here = [_reported(tool, name) for name in names(output)]
        if not here:
            problems.append(f"{tool} lists no GPU")
        found.update(dict.fromkeys(here))
    if not found:
        raise UsageError(f"no GPU was detected: {'; '.join(problems)}", hint=_NAME_IT)
    return tuple(found)


@functools.cache
def _index() -> dict[str, tuple[Gpu, ...]]:
    """Name or product without separators -> the GPUs called so."""
    index: dict[str, tuple[Gpu, ...]] = {}
    for gpu in gpus():
        for name in (gpu.name, *gpu.products):
            key = name.replace("-", "")
            index[key] = (*index.get(key, ()), gpu)
    return index


def _mentioned(text: str) -> tuple[Gpu, ...]:
    """Every GPU named in ``text``; of overlapping names the longest counts.

    So "RTX 6000 Ada" is not also the ambiguous "RTX 6000".
    """
    words = re.findall(r"[a-z0-9.]+", text)[:32]
    found: dict[Gpu, None] = {}
    start = 0
    while start < len(words):
        for end in range(len(words), start, -1):
            if hits := _index().get("".join(words[start:end])):
                found.update(dict.fromkeys(hits))
                start = end - 1
                break
        start += 1
    return tuple(found)


def _refuse_unknown(text: str) -> NoReturn:
    from difflib import get_close_matches  # noqa: PLC0415 - only on errors

    names = [name for gpu in gpus() for name in (gpu.name, *gpu.products)]
    close = get_close_matches(text[:40].casefold(), names)
    guess = f"; did you mean {' or '.join(close)}?" if close else ""
    raise UsageError(f"unknown GPU {_shown(text)}{guess}", hint="ckpt-patch targets")


def _shown(text: str) -> str:
    """``text`` quoted, short and without control characters: it may come from another program."""
    return repr(text if len(text) <= 80 else text[:77] + "...")  # noqa: PLR2004


_NAME_IT = "name the GPU, for example --target sm120; all names: ckpt-patch targets"

#: ``12.0, NVIDIA RTX PRO 6000 ...``, or ``[N/A], ...``; lines about MIG slices look different.
_NVIDIA_LINE = re.compile(
    r"^\s*(?:([0-9]+\.[0-9]+)|\[?(?:N/A|Not Supported)\]?)\s*,\s*(.+)$", re.MULTILINE
)
_AMD_LINE = re.compile(r"^\s*Name:\s+(gfx[0-9a-f]+)\b", re.MULTILINE)


def _nvidia_names(output: str) -> list[str]:
    """Capabilities, or product names where the driver does not tell the capability."""
    return [match[1] or match[2].strip() for match in _NVIDIA_LINE.finditer(output)]


def _amd_names(output: str) -> list[str]:
    """The gfx name of every GPU agent; CPU agents have other names."""
    return _AMD_LINE.findall(output)


_TOOLS = (
    ("nvidia-smi", ("--query-gpu=compute_cap,name", "--format=csv,noheader"), _nvidia_names),
    ("rocminfo", (), _amd_names),
)


def _reported(tool: str, name: str) -> Gpu:
    try:
        return find(name)
    except UsageError as error:
        message = f"{tool} reports {_shown(name)}, a GPU that ckpt-patch has no data for"
        raise UsageError(message, hint=_NAME_IT) from error


def _run(command: list[str], timeout: float) -> str:
    """What ``command`` prints, waiting no longer than ``timeout`` seconds.

    Raises:
        UsageError: a phrase to follow the command's name.
    """
    import subprocess  # noqa: PLC0415 - 6 ms, only for --target auto

    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603 - a fixed command found on the user's PATH
            command, stdin=null, stdout=pipe, stderr=null, start_new_session=True
        )
    except OSError as error:
        raise UsageError(f"cannot be started: {error.strerror}") from error
    try:
        output = process.communicate(timeout=timeout)[0].decode("utf-8", "replace").strip()
    except BaseException as error:
        _kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise UsageError(f"gave no answer within {timeout * 1000:.0f} ms") from error
        raise
    if process.returncode:
        first = output.partition("\n")[0]
        raise UsageError(f"failed with status {process.returncode}: {_shown(first)}")
    return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and its children; one that hangs in a driver cannot be reaped and is left."""
    from contextlib import suppress  # noqa: PLC0415 - as in _run
    from signal import SIGKILL  # noqa: PLC0415
    from subprocess import TimeoutExpired  # noqa: PLC0415

    assert process.stdout is not None
    process.stdout.close()
    with suppress(OSError, TimeoutExpired):
        os.killpg(process.pid, SIGKILL)
        process.wait(0.05)
