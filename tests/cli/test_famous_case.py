"""nvidia/Kimi-K2.5-NVFP4 on an RTX PRO 6000: the case that started it, from verdict to undo."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import make_cache
from running import Run, snapshot

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
SM120 = ("--target", "sm120")
VLLM_016 = (*SM120, "--engine", "vllm==0.16.0")
SCHEME = "/quantization_config/kv_cache_scheme"
ALGO = "/quantization/kv_cache_quant_algo"


@pytest.fixture(params=["fixture", "corpus"])
def kimi(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A scratch copy of our own fixture, and of the real metadata where it is at hand."""
    source = FIXTURE
    if request.param == "corpus":
        source = FIXTURE.parents[2] / "shared" / "corpus" / "nvidia--Kimi-K2.5-NVFP4"
        if not source.is_dir():
            pytest.skip("the corpus is not here")
    root = Path(shutil.copytree(source, tmp_path / "Kimi-K2.5-NVFP4"))
    for path in (root, *root.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o640)
    os.utime(root / "config.json", ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789))
    return root


def checked(run: Run, root: Path, engine: str | None, target: str = "sm120") -> tuple[int, Any]:
    options = ("--engine", engine) if engine else ()
    done = run("check", "--json", "--target", target, *options, str(root))
    return done.code, json.loads(done.out)


def test_vllm_016_does_not_start(kimi: Path, run: Run) -> None:
    code, verdict = checked(run, kimi, "vllm==0.16.0")
    assert code == 1
    assert verdict["schema"] == "ckpt-patch/check@1"
    assert verdict["outcome"] == "conflict"
    assert verdict["resolved"] == {
        "kv_cache_dtype": "fp8_e4m3",
        "decided_by": {"file": "config.json", "pointer": SCHEME},
    }
    answers = {backend["name"]: backend for backend in verdict["backends"]}
    assert answers["TRITON_MLA"]["reasons"] == ["kv_cache_dtype not supported"]
    others = set(answers) - {"TRITON_MLA"}
    assert others == {"FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "FLASHMLA_SPARSE"}
    for name in others:
        assert "compute capability not supported" in answers[name]["reasons"]
    assert verdict["findings"][0]["id"] == "KV001"
    lines = (kimi / "config.json").read_text().splitlines()
    place = verdict["findings"][0]["locations"][0]
    assert (place["file"], place["pointer"]) == ("config.json", SCHEME)
    assert '"kv_cache_scheme"' in lines[place["line"] - 1]
    assert [(c["kind"], c.get("argv"), c.get("version")) for c in verdict["cures"]] == [
        ("flag", ["--kv-cache-dtype", "bfloat16"], None),
        ("upgrade", None, ">=0.18.0"),
        ("patch", None, None),
    ]
    assert verdict["cures"][2]["recipe"] == "kv-cache-model-dtype"
    assert verdict["cures"][2]["edits"] == 2
    assert verdict["cost"] == {"kv_bytes_per_token": {"before": 35136, "after": 70272}}
    assert verdict["evidence"]["weight_bytes_read"] == 0
    read = {item["file"]: item["read"] for item in verdict["declarations"]}
    assert read == {"config.json": True, "hf_quant_config.json": False}


def test_the_same_in_words(kimi: Path, run: Run) -> None:
    done = run("check", *VLLM_016, str(kimi))
    assert done.code == 1
    for words in (
        "x KV001",
        "decides",
        "TRITON_MLA       kv_cache_dtype not supported",
        "vllm serve ... --kv-cache-dtype bfloat16",
        "pip install 'vllm>=0.18.0'",
        "ckpt-patch apply --target sm120 --engine vllm==0.16.0",
        "35,136 bytes per token as declared, 70,272",
        "No weights were read or changed.",
    ):
        assert words in done.out
    assert "\x1b" not in done.out
    assert "!" not in done.out.replace("! KV", "")


def test_vllm_012_ignores_the_declaration(kimi: Path, run: Run) -> None:
    code, verdict = checked(run, kimi, "vllm==0.12.0")
    assert code == 0
    assert verdict["resolved"] == {"kv_cache_dtype": "auto", "decided_by": "engine default"}
    assert {f["id"] for f in verdict["findings"]} == {"KV008"}
    assert verdict["selected"] == "TRITON_MLA"


def test_vllm_014_takes_an_override_of_the_whole_block(kimi: Path, run: Run) -> None:
    code, verdict = checked(run, kimi, "vllm==0.14.1")
    assert code == 1
    assert [cure["kind"] for cure in verdict["cures"]] == ["flag", "upgrade", "patch"]
    flag, override = verdict["cures"][0]["argv"]
    block = json.loads((kimi / "config.json").read_text())["quantization_config"]
    assert flag == "--hf-overrides"
    assert json.loads(override) == {"quantization_config": block | {"kv_cache_scheme": None}}
    shown = run("check", *SM120, "--engine", "vllm==0.14.1", str(kimi)).out
    (line,) = (line for line in shown.splitlines() if "--hf-overrides" in line)
    assert shlex.split(line)[-2:] == [flag, override]


@pytest.mark.parametrize(
    ("engine", "target", "backend"),
    [
        ("vllm==0.33.0", "sm120", "TRITON_MLA"),
        ("vllm==0.18.1", "sm120", "TRITON_MLA"),
        ("vllm==0.16.0", "sm100", "FLASHINFER_MLA"),
        ("vllm==0.16.0", "sm90", "FLASHMLA"),
    ],
)
def test_where_it_runs(kimi: Path, run: Run, engine: str, target: str, backend: str) -> None:
    code, verdict = checked(run, kimi, engine, target)
    assert (code, verdict["outcome"]) == (0, "compatible")
    assert verdict["resolved"]["kv_cache_dtype"] == "fp8_e4m3"
    assert verdict["selected"] == backend
    assert verdict["cures"] == []


def test_without_an_engine_every_release_is_asked(kimi: Path, run: Run) -> None:
    code, verdict = checked(run, kimi, None)
    states = {item["version"]: item["state"] for item in verdict["portable"]}
    assert code == 1
    assert states["0.12.0"] == "ignores"
    assert states["0.14.1"] == states["0.16.0"] == states["0.17.1"] == "refuses"
    assert states["0.18.1"] == states["0.33.0"] == "runs"
    assert [cure["kind"] for cure in verdict["cures"]] == ["upgrade", "patch"]
    assert verdict["cures"][0]["version"] == ">=0.18.0"


def test_apply_changes_the_two_values_and_undo_gives_everything_back(kimi: Path, run: Run) -> None:
    before = snapshot(kimi)
    texts = {path.name: path.read_text() for path in kimi.iterdir()}
    applied = run("apply", *VLLM_016, str(kimi))
    assert applied.code == 0, applied.err
    assert applied.out.splitlines()[-1].endswith(f"Undo: ckpt-patch undo {kimi}")
    after = {name: (kimi / name).read_text() for name in texts}
    scheme = texts["config.json"].split('"kv_cache_scheme": ')[1].split("}")[0] + "}"
    assert after["config.json"] == texts["config.json"].replace(scheme, "null")
    assert after["hf_quant_config.json"] == texts["hf_quant_config.json"].replace(
        '"kv_cache_quant_algo": "FP8"', '"kv_cache_quant_algo": null'
    )
    assert {path.name for path in kimi.iterdir()} == {*texts, ".ckpt-patch"}
    code, verdict = checked(run, kimi, "vllm==0.16.0")
    assert (code, verdict["outcome"]) == (0, "compatible")
    again = run("apply", *VLLM_016, str(kimi))
    assert (again.code, again.out.split(" on ")[0]) == (0, "Nothing to do: already applied as 0001")
    undone = run("undo", str(kimi))
    assert undone.code == 0
    shutil.rmtree(kimi / ".ckpt-patch")
    assert snapshot(kimi) == before


def test_apply_without_an_engine_says_for_whom(kimi: Path, run: Run) -> None:
    done = run("apply", *SM120, str(kimi))
    assert done.code == 0
    assert "vLLM 0.14.0 to 0.17.1 obeys it and does not start." in done.out
    assert "The patch is not needed with vLLM 0.18.0 to 0.33.0." in done.out
    assert "--engine vllm==0.33.0" in done.out
    assert "35,136 -> 70,272 bytes per token" in done.out
    assert checked(run, kimi, None)[0] == 0


def test_apply_writes_nothing_where_no_patch_is_needed(kimi: Path, run: Run) -> None:
    before = snapshot(kimi)
    done = run("apply", *SM120, "--engine", "vllm==0.33.0", str(kimi))
    assert done.code == 0
    assert "no patch is needed" in done.out
    assert snapshot(kimi) == before


def test_dry_run_shows_the_diff_and_changes_nothing(kimi: Path, run: Run) -> None:
    before = snapshot(kimi)
    done = run("apply", *VLLM_016, "--dry-run", str(kimi))
    assert done.code == 0
    assert (
        '-        "kv_cache_quant_algo": "FP8",\n+        "kv_cache_quant_algo": null,' in done.out
    )
    assert "Nothing was changed (--dry-run)." in done.out
    assert snapshot(kimi) == before


def test_undo_without_a_path(kimi: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = kimi.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    nothing = run("undo")
    assert nothing.code == 3
    assert "ckpt-patch undo CKPT" in nothing.err
    run("apply", *VLLM_016, str(kimi))
    done = run("undo")
    assert done.code == 0
    assert f"Undoing the checkpoint patched last: {kimi}" in done.err
    run("apply", *VLLM_016, str(kimi))
    monkeypatch.chdir(kimi)
    assert run("undo").code == 0
    assert run("status", "-q").out == "pristine\n"


def test_edited_after_apply(kimi: Path, run: Run) -> None:
    run("apply", *VLLM_016, str(kimi))
    config = kimi / "config.json"
    config.write_text(config.read_text().replace('"kimi_k25"', '"kimi_k26"'))
    edited = config.read_bytes()
    refused = run("undo", str(kimi))
    assert refused.code == 3
    assert '"kimi_k26"' in refused.err
    assert "ckpt-patch undo --merge" in refused.err
    assert config.read_bytes() == edited
    assert run("status", "-q", str(kimi)).out == "edited\n"
    assert run("undo", "--merge", str(kimi)).code == 0
    merged = json.loads(config.read_text())
    assert merged["model_type"] == "kimi_k26"
    assert merged["quantization_config"]["kv_cache_scheme"]["num_bits"] == 8


def test_a_plan_is_saved_and_applied_and_a_stale_one_refused(kimi: Path, run: Run) -> None:
    plan = kimi.parent / "plan.json"
    assert run("plan", *VLLM_016, "-o", str(plan), str(kimi)).code == 0
    assert json.loads(plan.read_text())["schema"] == "ckpt-patch/plan@1"
    config = kimi / "config.json"
    original = config.read_text()
    config.write_text(original.replace('"kimi_k25"', '"kimi_k26"', 1))
    stale = run("apply", "--plan", str(plan), str(kimi))
    assert stale.code == 3
    assert "moved since: /model_type" in stale.err
    assert not (kimi / ".ckpt-patch").exists()
    config.write_text(original)
    applied = run("apply", "--plan", str(plan), str(kimi))
    assert applied.code == 0, applied.err
    assert checked(run, kimi, "vllm==0.16.0")[0] == 0
    assert run("undo", str(kimi)).code == 0
    assert config.read_text() == original


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ({"op": "replace", "path": "/auto_map", "value": {}}, "no KV-cache statement"),
        ({"op": "remove", "path": SCHEME}, "no KV-cache statement"),
        ({"op": "replace", "path": SCHEME, "value": 1}, "without a test"),
    ],
)
def test_a_plan_from_a_stranger_changes_only_statements(
    operation: Any, words: str, kimi: Path, run: Run
) -> None:
    plan = kimi.parent / "plan.json"
    run("plan", *VLLM_016, "-o", str(plan), str(kimi))
    document = json.loads(plan.read_text())
    document["files"][0]["patch"] = [operation]
    plan.write_text(json.dumps(document))
    before = snapshot(kimi)
    done = run("apply", "--plan", str(plan), str(kimi))
    assert done.code == 4
    assert words in done.err
    assert snapshot(kimi) == before


def test_a_plan_that_names_another_file_is_refused(kimi: Path, run: Run) -> None:
    plan = kimi.parent / "plan.json"
    run("plan", *VLLM_016, "-o", str(plan), str(kimi))
    plan.write_text(plan.read_text().replace('"config.json"', '"../config.json"'))
    assert run("apply", "--plan", str(plan), str(kimi)).code == 3
    plan.write_text('{"schema": "ckpt-patch/plan@1"}')
    assert run("apply", "--plan", str(plan), str(kimi)).code == 4
    plan.write_text("{}")
    done = run("apply", "--plan", str(plan), str(kimi))
    assert (done.code, "this is no plan" in done.err) == (4, True)


def test_the_report_of_what_was_applied(kimi: Path, run: Run) -> None:
    run("apply", *VLLM_016, str(kimi))
    page = kimi.parent / "report.md"
    assert run("report", "-o", str(page), str(kimi)).code == 0
    text = page.read_text()
    for words in (
        "conflict -> compatible",
        "| `TRITON_MLA` | refuses | kv\\_cache\\_dtype not supported | selector |",
        "## What each engine reads",
        "| TensorRT-LLM | `hf_quant_config.json` |",
        '+        "kv_cache_scheme": null,',
        '"op": "test"',
        "Inverse",
        "sha256 before",
        "35,136 bytes per token",
        "the weights (\\*.safetensors): not read, not copied, not changed",
        f"ckpt-patch undo {kimi}",
        '- `hf_quant_config.json:/quantization/kv_cache_quant_algo: "FP8" -> null`',
    ):
        assert words in text
    document = kimi.parent / "report.json"
    assert run("report", "-o", str(document), str(kimi)).code == 0
    parsed = json.loads(document.read_text())
    assert parsed["schema"] == "ckpt-patch/report@1"
    assert parsed["after"]["outcome"] == "compatible"
    assert (kimi / ".ckpt-patch" / "0001.applied" / "report.md").read_text() == text


def test_an_hf_cache_snapshot(run: Run, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in FIXTURE.iterdir()}
    snapshot_dir = make_cache(tmp_path / "hub", "nvidia/Kimi-K2.5-NVFP4", files)
    other = make_cache(tmp_path / "hub", "nvidia/Kimi-K2.5-NVFP4", files, commit="f" * 40)
    blobs = snapshot_dir.parents[1] / "blobs"
    before = (snapshot(blobs), snapshot(snapshot_dir), snapshot(other))
    applied = run("apply", *VLLM_016, str(snapshot_dir))
    assert applied.code == 0, applied.err
    assert "Hugging Face cache snapshot" in applied.err
    assert snapshot(blobs) == before[0]
    assert snapshot(other) == before[2]
    config = snapshot_dir / "config.json"
    assert config.is_file()
    assert not config.is_symlink()
    assert run("check", *VLLM_016, str(snapshot_dir)).code == 0
    assert run("check", *VLLM_016, str(other)).code == 1
    assert run("undo", str(snapshot_dir)).code == 0
    shutil.rmtree(snapshot_dir / ".ckpt-patch")
    links = {name: (mode, link) for name, (mode, _, link) in snapshot(snapshot_dir).items()}
    assert links == {name: (mode, link) for name, (mode, _, link) in before[1].items()}
    assert snapshot(blobs) == before[0]
