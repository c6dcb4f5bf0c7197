"""The target grammar and the engines installed in this environment."""

from __future__ import annotations

import pickle
import site
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher import gpus, target
from patcher.errors import UsageError
from patcher.target import Target, command_line, installed_engines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """An environment without packages, and a way to install fakes that cannot be imported."""
    others = [path for path in sys.path if path not in [*site.getsitepackages(), ""]]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *others])

    def add(package: str, version: str, distribution: str | None = None) -> None:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('imported')\n")
        info = tmp_path / f"{distribution or package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {distribution or package}\nVersion: {version}\n")

    return add


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "installed_engines", dict)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("vllm==0.16.0", ("vllm", "0.16.0")),
        ("vllm@0.16.0", ("vllm", "0.16.0")),
        ("vllm 0.16.0", ("vllm", "0.16.0")),
        (" vllm == 0.16.0 ", ("vllm", "0.16.0")),
        ("vLLM==v0.16.0", ("vllm", "0.16.0")),
        ("vllm==0.16", ("vllm", "0.16")),
        ("vllm==0.16.0rc2.dev313", ("vllm", "0.16.0rc2.dev313")),
        ("vllm==0.16.0+cu128", ("vllm", "0.16.0+cu128")),
        ("vllm", ("vllm", None)),
        ("sglang==0.5.23", ("sglang", "0.5.23")),
        ("trtllm==1.2.0", ("trtllm", "1.2.0")),
        ("tensorrt-llm==1.2.0rc7", ("trtllm", "1.2.0rc7")),
        ("tensorrt_llm@1.2.0", ("trtllm", "1.2.0")),
        ("TRT-LLM", ("trtllm", None)),
        (None, (None, None)),
    ],
)
def test_engine_grammar(engine: str | None, expected: tuple[str | None, str | None]) -> None:
    parsed = Target.parse("sm120", engine=engine)
    assert (parsed.engine, parsed.version) == expected


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("vlm==0.16.0", "unknown engine 'vlm'; did you mean vllm?"),
        ("sg-lang", "unknown engine 'sg-lang'; did you mean sglang?"),
        ("ollama", "unknown engine 'ollama'; known: vllm, sglang, trtllm"),
        ("auto==1", "unknown engine 'auto'; known: vllm, sglang, trtllm"),
        ("vllm==latest", "'latest' is no vllm version"),
        ("vllm==0.16.*", "'0.16.*' is no vllm version"),
        ("vllm==", "'vllm==' does not name an engine release"),
        ("vllm>=0.16", "'vllm>=0.16' does not name an engine release"),
        ("vllm==0.16 sglang", "'vllm==0.16 sglang' does not name an engine release"),
        ("0.16.0", "'0.16.0' does not name an engine release"),
        ("", "'' does not name an engine release"),
        ("auto", "no engine is installed here"),
    ],
)
def test_bad_engines(engine: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Target.parse("sm120", engine=engine)
    assert caught.value.message == message
    assert caught.value.hint == "--engine vllm==0.16.0; known releases: ckpt-patch engines"


@pytest.mark.usefixtures("no_engine")
@given(st.text())
def test_any_engine_text_is_a_target_or_a_usage_error(text: str) -> None:
    try:
        parsed = Target.parse("sm120", engine=text)
    except UsageError as error:
        assert len(error.message) < 450  # noqa: PT017 - 40 characters, escaped
    else:
        assert parsed.engine in ("vllm", "sglang", "trtllm")


@pytest.mark.usefixtures("no_engine")
def test_gpu_and_flags() -> None:
    parsed = Target.parse("12.0", engine="vllm==0.16.0")
    assert parsed == Target(gpus.find("sm120"), "vllm", "0.16.0", None, "auto")
    parsed = Target.parse(
        "b200", engine="sglang", attention_backend=" trtllm_mla ", kv_cache_dtype=" bf16 "
    )
    assert parsed == Target(gpus.find("sm100"), "sglang", None, "trtllm_mla", "bf16")


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("engine", "backend"),
    [
        ("vllm", "TRITON_MLA"),
        (None, "TRITON_MLA"),
        ("sglang", "triton_mla"),
        ("trtllm", "triton_mla"),
    ],
)
def test_backends_are_upper_case_where_vllm_judges(engine: str | None, backend: str) -> None:
    parsed = Target.parse("sm120", engine=engine, attention_backend="triton_mla")
    assert parsed.attention_backend == backend


@pytest.mark.usefixtures("no_engine")
def test_empty_flags_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^--backend has an empty value$"):
        Target.parse("sm120", attention_backend=" ")
    with pytest.raises(UsageError, match=r"^--kv-cache-dtype has an empty value$"):
        Target.parse("sm120", kv_cache_dtype="")


@pytest.mark.usefixtures("no_engine")
def test_an_unknown_gpu() -> None:
    with pytest.raises(UsageError, match="unknown GPU 'sm12'; did you mean sm121 or sm120"):
        Target.parse("sm12")


@pytest.mark.usefixtures("no_engine")
def test_targets_are_values() -> None:
    first = Target.parse("sm120", engine="vllm==0.16.0")
    assert first == pickle.loads(pickle.dumps(first))
    assert len({first, Target.parse("SM_120", engine="vllm@0.16.0")}) == 1
    with pytest.raises(AttributeError):
        first.engine = "sglang"  # type: ignore[misc]


@pytest.mark.usefixtures("no_engine")
def test_json_form() -> None:
    assert Target.parse(
        "rtx-5090", engine="vllm==0.16.0", attention_backend="triton_mla"
    ).to_dict() == {
        "gpu": "sm120",
        "engine": "vllm",
        "version": "0.16.0",
        "attention_backend": "TRITON_MLA",
        "kv_cache_dtype": "auto",
        "decode_attention_backend": None,
    }


@pytest.mark.usefixtures("no_engine")
def test_auto_detects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "detect", lambda: (gpus.find("h200"),))
    assert Target.parse(" AUTO ").gpu.name == "sm90"


@pytest.mark.usefixtures("no_engine")
def test_auto_with_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "detect", lambda: (gpus.find("h200"), gpus.find("l4")))
    both = Target.parse_all("auto", engine="vllm==0.16.0", kv_cache_dtype="fp8")
    assert both == (
        Target(gpus.find("sm90"), "vllm", "0.16.0", None, "fp8"),
        Target(gpus.find("sm89"), "vllm", "0.16.0", None, "fp8"),
    )
    with pytest.raises(UsageError) as caught:
        Target.parse("auto")
    assert caught.value.message == "this machine has different GPUs: sm90, sm89"
    assert caught.value.hint == "name one, for example --target sm90"


def test_nothing_installed(install: Install) -> None:
    del install  # only for its empty environment
    assert installed_engines() == {}
    assert Target.parse("sm120").engine is None


def test_installed_engines_are_found_and_not_imported(install: Install) -> None:
    install("vllm", "0.16.0")
    install("sglang", "0.5.23")
    install("tensorrt_llm", "1.2.0")
    assert installed_engines() == {"vllm": "0.16.0", "sglang": "0.5.23", "trtllm": "1.2.0"}
    assert not {"vllm", "sglang", "tensorrt_llm"} & set(sys.modules)


def test_a_folder_of_that_name_is_no_installation(install: Install, tmp_path: Path) -> None:
    del install
    (tmp_path / "vllm").mkdir()
    assert installed_engines() == {}


@pytest.mark.parametrize("engine", [None, "auto"])
def test_the_only_installed_engine_is_taken(install: Install, engine: str | None) -> None:
    install("sglang", "0.5.23")
    parsed = Target.parse("sm120", engine=engine)
    assert (parsed.engine, parsed.version) == ("sglang", "0.5.23")


def test_several_installed_engines(install: Install) -> None:
    install("vllm", "0.16.0")
    install("sglang", "0.5.23")
    assert Target.parse("sm120").engine is None
    assert Target.parse("sm120", engine="sglang").version == "0.5.23"
    assert Target.parse("sm120", engine="sglang==0.5.10").version == "0.5.10"
    with pytest.raises(UsageError, match=r"^several engines are installed here: vllm, sglang$"):
        Target.parse("sm120", engine="auto")


def test_an_installed_version_that_is_none(install: Install) -> None:
    install("vllm", "main")
    with pytest.raises(UsageError, match=r"^'main' is no vllm version$"):
        Target.parse("sm120")
    assert Target.parse("sm120", engine="vllm==0.16.0").version == "0.16.0"


def test_the_options_that_mean_a_target_mean_it() -> None:
    """Printed commands repeat the launch; they are parsed to the same target."""
    options = {
        "attention_backend": "flashinfer",
        "kv_cache_dtype": "fp8_e5m2",
        "decode_attention_backend": "trtllm_mla",
    }
    target = Target.parse("sm120", engine="sglang==0.5.10", **options)
    line = command_line(target.to_dict())
    assert line == (
        "--target sm120 --engine sglang==0.5.10 --backend flashinfer --decode-backend trtllm_mla "
        "--kv-cache-dtype fp8_e5m2"
    )
    assert command_line(Target.parse("h100").to_dict()) == "--target sm90"
    assert command_line({**target.to_dict(), "attention_backend": "a b"}).count("'a b'") == 1
