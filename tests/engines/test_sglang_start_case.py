"""What SGLang's ``ServerArgs`` checks before it starts with trtllm_mla or tokenspeed_mla.

Both have a rule about the GPU and one about ``--kv-cache-dtype``, for ``--attention-backend`` and
for ``--decode-attention-backend`` alike. The two rules changed at different releases; here each
change stands with the last release before it, in the releases' own words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from patcher import engines, gpus
from patcher.engines import sglang
from patcher.engines.base import Launch
from patcher.metadata.model import describe

if TYPE_CHECKING:
    from patcher.engines.base import Answer

BOTH = pytest.mark.parametrize("flag", ["attention_backend", "decode_attention_backend"])
RELEASES = engines.releases("sglang")
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 2,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}
#: First release -> the dtypes that trtllm_mla takes, as the message lists them.
TRTLLM_DTYPES = {
    "0.5.2": "fp8_e4m3 or auto",
    "0.5.4.post3": "fp8_e4m3, fp4_e2m1, or auto",
    "0.5.7": "fp8_e4m3, fp4_e2m1, bf16, or auto",
    "0.5.21": "fp8_e4m3, bf16, or auto",
}
#: First release -> the NVIDIA GPUs that trtllm_mla takes, and what the others are told.
TRTLLM_GPUS = {
    "0.5.2": ({"sm100", "sm103"}, "SM100"),
    "0.5.4.post2": ({"sm100", "sm103", "sm120", "sm121"}, "SM100"),
    "0.5.9": ({"sm100", "sm103", "sm110", "sm120", "sm121"}, "SM100/SM12x"),
}
TOKENSPEED = ("0.5.12", "0.5.22")
ASKED = ("sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121")
AMD = ("gfx942", "gfx950")


def _ask(release: str, gpu: str, **flags: str) -> Answer:
    documents: dict[str, Any] = {"config.json": DEEPSEEK}
    launch = Launch(gpu, gpus.find(gpu).capability, **flags)
    return sglang.answer(release, documents, describe(documents), launch)


def _since(table: dict[str, Any], release: str) -> Any:
    """The entry of the last change up to this release."""
    order = RELEASES.index(release)
    return next(v for first, v in reversed(table.items()) if RELEASES.index(first) <= order)


def _names(words: str) -> set[str]:
    return set(words.replace(" or ", " ").replace(",", " ").split())


def _message(found: Answer) -> str:
    return found.refusals[0].message if found.refusals else ""


@BOTH
@pytest.mark.parametrize("release", RELEASES)
def test_trtllm_mla_takes_these_dtypes_in_every_release(release: str, flag: str) -> None:
    words = _since(TRTLLM_DTYPES, release)
    wanted = f"ValueError: TensorRT-LLM MLA backend only supports kv-cache-dtype of {words}."
    values = set(sglang.flag_values(release))
    for value in values - {"nvfp4", "fp4_mx_block16", "mxfp8"}:  # they have rules of their own
        found = _ask(release, "sm100", **{flag: "trtllm_mla"}, kv_cache_dtype=value)
        if value == "fp4_e2m1" and value in _names(words) and not _is_alive(release):
            assert "--kv-cache-dtype=fp4_e2m1 is deprecated" in _message(found)
        else:
            assert _message(found) == ("" if value in _names(words) else wanted), (value, release)
        if _message(found) == wanted:
            assert found.refusals[0].finding == "KV011"
            assert [backend.name for backend in found.backends] == ["trtllm_mla"]


def _is_alive(release: str) -> bool:
    """From 0.5.16 on fp4_e2m1 passes this check and dies where the pool is made."""
    return RELEASES.index(release) < RELEASES.index("0.5.16")


def test_trtllm_mla_never_takes_the_long_spelling_of_bfloat16() -> None:
    known = [release for release in RELEASES if "bfloat16" in sglang.flag_values(release)]
    assert known[0] == "0.5.4"
    for release in known:
        asked = {"attention_backend": "trtllm_mla", "kv_cache_dtype": "bfloat16"}
        assert _ask(release, "sm100", **asked).refusals


@BOTH
@pytest.mark.parametrize("release", RELEASES)
def test_trtllm_mla_takes_these_gpus_in_every_release(release: str, flag: str) -> None:
    taken, words = _since(TRTLLM_GPUS, release)
    wanted = (
        f"ValueError: TRTLLM MLA backend is only supported on Blackwell GPUs ({words}). "
        "Please use a different backend."
    )
    for gpu in (*ASKED, *AMD):
        found = _ask(release, gpu, **{flag: "trtllm_mla"}, kv_cache_dtype="fp8_e4m3")
        assert _message(found) == ("" if gpu in taken else wanted), gpu
        if gpu not in taken:
            assert found.refusals[0].finding == "KV001"


@BOTH
@pytest.mark.parametrize("release", RELEASES)
def test_tokenspeed_mla_takes_explicit_fp8_only(release: str, flag: str) -> None:
    first, last = map(RELEASES.index, TOKENSPEED)
    place = RELEASES.index(release)
    if place < first:
        found = _ask(release, "sm100", **{flag: "tokenspeed_mla"})
        name = flag.replace("_", "-")
        assert _message(found).startswith(f"argument --{name}: invalid choice: 'tokenspeed_mla'")
        assert "trtllm_mla" in _message(found)
        return
    for value in ("auto", "bf16", "bfloat16", "fp8_e5m2", "fp8_e4m3"):
        found = _ask(release, "sm100", **{flag: "tokenspeed_mla"}, kv_cache_dtype=value)
        wanted = (
            f"ValueError: tokenspeed_mla backend requires kv-cache-dtype=fp8_e4m3, got {value}."
        )
        taken = value == "fp8_e4m3" or place > last
        assert _message(found) == ("" if taken else wanted)
        if taken:
            assert found.resolution is not None
            assert found.resolution.kv_cache_dtype == "fp8_e4m3"


@BOTH
@pytest.mark.parametrize(
    ("release", "taken", "words"),
    [
        (TOKENSPEED[0], {"sm100", "sm103", "sm110", "sm120", "sm121"}, "tokenspeed_mla"),
        (TOKENSPEED[1], {"sm100", "sm103", "sm110", "sm120", "sm121"}, "tokenspeed_mla"),
        ("0.5.23", {"sm100", "sm103"}, "CuteDSL MLA"),  # an alias of cutedsl_mla from then on
    ],
)
def test_tokenspeed_mla_takes_these_gpus(
    release: str, taken: set[str], words: str, flag: str
) -> None:
    for gpu in (*ASKED, *AMD):
        found = _ask(release, gpu, **{flag: "tokenspeed_mla"}, kv_cache_dtype="fp8_e4m3")
        refused = _message(found).startswith(
            f"ValueError: {words} backend is only supported on Blackwell GPUs (SM100"
        )
        assert refused is (gpu not in taken), gpu


def test_a_statement_in_the_checkpoint_does_not_satisfy_tokenspeed_mla() -> None:
    """The check sees the flag, "auto", never the FP8 that the files ask for."""
    block = {"quant_method": "fp8", "fmt": "e4m3", "kv_cache_quant_algo": "FP8"}
    documents: dict[str, Any] = {"config.json": {**DEEPSEEK, "quantization_config": block}}
    launch = Launch("sm100", "10.0", decode_attention_backend="tokenspeed_mla")
    found = sglang.answer("0.5.22", documents, describe(documents), launch)
    assert _message(found).endswith("requires kv-cache-dtype=fp8_e4m3, got auto.")
    plain = sglang.answer("0.5.22", documents, describe(documents), Launch("sm100", "10.0"))
    assert plain.resolution is not None
    assert plain.resolution.kv_cache_dtype == "fp8_e4m3"


def test_prefill_and_decode_are_both_constructed() -> None:
    found = _ask("0.5.22", "sm120", decode_attention_backend="trtllm_mla")
    assert [backend.name for backend in found.backends] == ["triton", "trtllm_mla"]
    assert found.refusals == ()
    early = _ask("0.5.2", "sm100", decode_attention_backend="trtllm_mla")
    assert [backend.name for backend in early.backends] == ["flashinfer", "trtllm_mla"]


def test_two_backends_at_once_and_others_for_decoding_were_not_asked_about() -> None:
    pair = _ask("0.5.22", "sm120", attention_backend="triton", decode_attention_backend="fa4")
    assert pair.unknown is not None
    assert "together with --attention-backend triton" in pair.unknown
    alone = _ask("0.5.22", "sm120", decode_attention_backend="triton")
    assert alone.unknown is not None
    assert "only about one alone of fa4, flashinfer" in alone.unknown


@pytest.mark.parametrize(
    ("version", "release", "note"),
    [
        # Post and dot releases with facts of their own stand for themselves ...
        ("0.5.4.post2", "0.5.4.post2", None),
        ("0.5.4.post3", "0.5.4.post3", None),
        ("0.5.23", "0.5.23", None),
        # ... the others for the nearest, and that is said.
        ("0.5.23.post1", "0.5.23", "the release it is built from"),
        ("0.5.9rc1", "0.5.9", "the release it precedes"),
        ("0.5.99", RELEASES[-1], "the newest release with facts"),
    ],
)
def test_which_release_answers(version: str, release: str, note: str | None) -> None:
    found, said = engines.nearest("sglang", version)
    assert found == release
    assert said == (note and f"sglang {version} is judged as {release}, {note}")
