"""What a verdict is about: a GPU, an engine release, and the launch flags that matter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from patcher import gpus
from patcher.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The engines by every spelling that is accepted.
_ENGINES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "trt-llm": "trtllm",
    "tensorrt-llm": "trtllm",
}

#: Engine -> the import package and the distribution that it is installed from.
_DISTRIBUTIONS = {
    "vllm": ("vllm", "vllm"),
    "sglang": ("sglang", "sglang"),
    "trtllm": ("tensorrt_llm", "tensorrt-llm"),
}

#: What packaging would give back unchanged.
_PLAIN_VERSION = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))*")
_REQUEST = re.compile(r"([A-Za-z][A-Za-z_-]*)(?:(?:\s*(?:==|@)\s*|\s+)(\S+))?")

_FORMS = "--engine vllm==0.16.0; known releases: ckpt-patch engines"


class Target(Struct, frozen=True):
    """Where a checkpoint is to run.

    Attributes:
        gpu: the kind of GPU.
        engine: ``"vllm"``, ``"sglang"``, ``"trtllm"``, or ``None``: every known vLLM release.
        version: the release in PEP 440's normal form; ``None`` where only the engine is known.
        attention_backend: value of the launch flag, ``None`` when it is not given.
        kv_cache_dtype: value of the launch flag, ``"auto"`` when it is not given.
        decode_attention_backend: value of SGLang's launch flag, ``None`` when it is not given.
    """

    gpu: gpus.Gpu
    engine: str | None = None
    version: str | None = None
    attention_backend: str | None = None
    kv_cache_dtype: str = "auto"
    decode_attention_backend: str | None = None

    @classmethod
    def parse(
        cls,
        gpu: str,
        *,
        engine: str | None = None,
        attention_backend: str | None = None,
        kv_cache_dtype: str = "auto",
        decode_attention_backend: str | None = None,
    ) -> Target:
        """The target that the texts describe.

        Args:
            gpu: any name that ``gpus.find`` takes, or ``"auto"``: the GPU of this machine.
            engine: ``"vllm==0.16.0"``, ``"vllm@0.16.0"``; ``"vllm"``: the installed release, if it
                is installed; ``"auto"``: the engine installed here; ``None``: the same if exactly
                one is installed, otherwise none (a portable verdict).
            attention_backend: value of the engine's launch flag.
            kv_cache_dtype: value of the engine's launch flag.
            decode_attention_backend: value of SGLang's launch flag.

        Raises:
            UsageError: something is unknown, or ``"auto"`` finds none or several; or a backend for
                decoding is asked of an engine without such a flag.
        """
        targets = cls.parse_all(
            gpu,
            engine=engine,
            attention_backend=attention_backend,
            kv_cache_dtype=kv_cache_dtype,
            decode_attention_backend=decode_attention_backend,
        )
        if len(targets) > 1:
            names = ", ".join(target.gpu.name for target in targets)
            hint = f"name one, for example --target {targets[0].gpu.name}"
            raise UsageError(f"this machine has different GPUs: {names}", hint=hint)
        return targets[0]

    @classmethod
    def parse_all(
        cls,
        gpu: str,
        *,
        engine: str | None = None,
        attention_backend: str | None = None,
        kv_cache_dtype: str = "auto",
        decode_attention_backend: str | None = None,
    ) -> tuple[Target, ...]:
        """Like ``parse``; ``"auto"`` gives one target for each kind of GPU of this machine."""
        here = gpus.detect() if gpu.strip().lower() == "auto" else (gpus.find(gpu),)
        name, version = _engine(engine)
        backend = _flag("--backend", attention_backend)
        if backend and name in (None, "vllm"):
            backend = backend.upper()  # vLLM's enum members; SGLang's choices are lower case
        dtype = _flag("--kv-cache-dtype", kv_cache_dtype) or "auto"
        decode = _flag("--decode-backend", decode_attention_backend)
        if decode is not None and name != "sglang":
            raise _no_decode_flag(name)
        return tuple(cls(one, name, version, backend, dtype, decode) for one in here)

    def to_dict(self) -> dict[str, str | None]:
        """The ``target`` object of the JSON documents."""
        return {
            "gpu": self.gpu.name,
            "engine": self.engine,
            "version": self.version,
            "attention_backend": self.attention_backend,
            "kv_cache_dtype": self.kv_cache_dtype,
            "decode_attention_backend": self.decode_attention_backend,
        }


def command_line(target: Mapping[str, str | None]) -> str:
    """``--target sm120 --engine vllm==0.16.0``: the options that mean a target in its JSON form."""
    from shlex import quote  # noqa: PLC0415 - lazy: only refusals and conflicts print commands

    dtype = target.get("kv_cache_dtype")
    options = {
        "--target": target["gpu"],
        "--engine": "==".join(filter(None, (target["engine"], target["version"]))),
        "--backend": target.get("attention_backend"),
        "--decode-backend": target.get("decode_attention_backend"),
        "--kv-cache-dtype": None if dtype == "auto" else dtype,
    }
    return " ".join(f"{name} {quote(value)}" for name, value in options.items() if value)


def installed_engines() -> Mapping[str, str]:
    """Engine -> version, for the engines installed in this environment; none is imported."""
    from importlib.util import find_spec  # noqa: PLC0415 - keeps --help fast

    found = {}
    for engine, (package, distribution) in _DISTRIBUTIONS.items():
        # Reading distribution metadata costs 45 ms; most environments have no engine.
        if find_spec(package) is not None and (version := _installed(distribution)):
            found[engine] = version
    return found


def _installed(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - 45 ms

    try:
        return version(distribution)
    except PackageNotFoundError:  # a folder of that name, not an installation
        return None


def _engine(text: str | None) -> tuple[str | None, str | None]:
    """Engine and version that ``text`` asks for."""
    if text is None or text.strip().lower() == "auto":
        return _only_installed(required=text is not None)
    match = _REQUEST.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text[:40]!r} does not name an engine release", hint=_FORMS)
    engine = _ENGINES.get(match[1].lower().replace("_", "-"))
    if engine is None:
        raise _unknown_engine(match[1])
    asked = match[2] or installed_engines().get(engine)
    return engine, _version(engine, asked) if asked else None


def _only_installed(*, required: bool) -> tuple[str | None, str | None]:
    found = installed_engines()
    if len(found) == 1:
        engine, version = next(iter(found.items()))
        return engine, _version(engine, version)
    if required:
        several = f"several engines are installed here: {', '.join(found)}"
        raise UsageError(several if found else "no engine is installed here", hint=_FORMS)
    return None, None


def _version(engine: str, text: str) -> str:
    if _PLAIN_VERSION.fullmatch(text):
        return text
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415 - 15 ms

    try:
        return str(Version(text))
    except InvalidVersion as error:
        raise UsageError(f"{text[:40]!r} is no {engine} version", hint=_FORMS) from error


def _unknown_engine(name: str) -> UsageError:
    from difflib import get_close_matches  # noqa: PLC0415 - only on errors

    close = get_close_matches(name.lower()[:40], _ENGINES, n=1, cutoff=0.7)
    guess = f"; did you mean {close[0]}?" if close else "; known: vllm, sglang, trtllm"
    return UsageError(f"unknown engine {name[:40]!r}{guess}", hint=_FORMS)


def _no_decode_flag(engine: str | None) -> UsageError:
    names = {"vllm": "vLLM", "trtllm": "TensorRT-LLM"}
    asked = "no engine is named" if engine is None else f"{names[engine]} has no such flag"
    return UsageError(
        f"--decode-backend is a launch flag of SGLang, and {asked}",
        hint="leave it out, or name an SGLang release, for example --engine sglang==0.5.23",
    )


def _flag(name: str, value: str | None) -> str | None:
    """A flag's value without surrounding blanks."""
    if value is None:
        return None
    if not value.strip():
        raise UsageError(f"{name} has an empty value")
    return value.strip()
