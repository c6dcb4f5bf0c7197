"""The values that every engine module takes and gives.

An engine module answers one question: given the parsed metadata files, the model they describe, a
GPU and a launch, what will this release do? It does no I/O beyond reading packaged facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

#: ``config.json`` -> its parsed value; only metadata files that exist are there.
Documents = Mapping[str, Any]

Stage = Literal["config", "resolver", "validator", "selector", "implementation", "kernel"]

#: The finding of a refusal that no KV-cache edit cures: it is about the model, its weights, the GPU
#: or a backend beside the model's other layers.
NOT_KV = "KV016"


class Place(Struct, frozen=True):
    """One JSON value: ``pointer`` (RFC 6901) inside ``file``."""

    file: str
    pointer: str


class Launch(Struct, frozen=True):
    """How the engine is started.

    Attributes:
        capability: compute capability as the engine sees it, ``"12.0"``; ``None`` where the GPU has
            none (AMD, CPU).
        gpu: the canonical GPU name, ``"sm120"`` or ``"gfx942"``.
        kv_cache_dtype: the value of the launch flag, ``"auto"`` when it is not given.
        attention_backend: the backend asked for by flag, or ``None``.
        decode_attention_backend: the one asked for decoding alone (SGLang only), or ``None``.
    """

    gpu: str
    capability: str | None
    kv_cache_dtype: str = "auto"
    attention_backend: str | None = None
    decode_attention_backend: str | None = None


class Resolution(Struct, frozen=True):
    """Which KV-cache dtype the engine ends up with, and why.

    Attributes:
        kv_cache_dtype: what the cache will hold; ``"auto"`` means the model's own dtype.
        decided_by: the value in the files that decided, or ``"flag"``, ``"engine default"``,
            ``"model hook"``.
        read: the places that this release looked at while resolving, in its order.
    """

    kv_cache_dtype: str
    decided_by: Place | Literal["flag", "engine default", "model hook"]
    read: tuple[Place, ...] = ()


class BackendAnswer(Struct, frozen=True):
    """What one attention backend says to the resolved dtype on this GPU.

    ``stage`` is where the answer was given: some releases let the selector accept what the
    implementation then refuses. ``reasons`` are the engine's own words, empty when it accepts.
    """

    name: str
    accepts: bool
    stage: Stage
    reasons: tuple[str, ...] = ()


class Refusal(Struct, frozen=True):
    """The engine does not start. ``finding`` is the id of design section 7 that it amounts to.

    ``message`` is the engine's own text (exception type first), shortened to its first sentence
    where it is long; ``place`` is the value in the files that provoked it, if it was one.
    """

    stage: Stage
    finding: str
    message: str
    place: Place | None = None


class Notice(Struct, frozen=True):
    """Something the user should know although the engine starts. ``finding`` as in Refusal."""

    finding: str
    severity: Literal["warning", "info"]
    message: str
    place: Place | None = None


class Answer(Struct, frozen=True):
    """All that one release answers.

    Attributes:
        resolution: ``None`` when the release refuses before it resolves anything.
        backends: in the engine's order of preference; empty when none was asked.
        selected: name of the backend that would run, ``None`` when it does not start.
        refusals: why it does not start; empty when it starts.
        notices: see Notice.
        unknown: a sentence when this release cannot be judged for this input; never a verdict.
        note: how the answer was found, where the release's code was read and not run.
    """

    resolution: Resolution | None
    backends: tuple[BackendAnswer, ...] = ()
    selected: str | None = None
    refusals: tuple[Refusal, ...] = ()
    notices: tuple[Notice, ...] = field(default=())
    unknown: str | None = None
    note: str | None = None
