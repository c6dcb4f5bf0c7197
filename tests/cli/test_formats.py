"""Formats, colours, exit codes and the small commands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from patcher import __version__
from patcher.cli.app import COMMANDS

if TYPE_CHECKING:
    from running import Run

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
CONFLICT = ("check", "--target", "sm120", "--engine", "vllm==0.16.0")
FINE = ("check", "--target", "sm120", "--engine", "vllm==0.33.0")


def test_quiet_prints_the_outcome_and_the_findings(run: Run) -> None:
    assert run(*CONFLICT, "-q", str(FIXTURE)).out == "conflict KV001\n"
    assert run(*FINE, "-q", str(FIXTURE)).out == "compatible\n"


def test_exit_zero_and_strict(run: Run) -> None:
    assert run(*CONFLICT, "--exit-zero", str(FIXTURE)).code == 0
    old = ("check", "--target", "sm120", "--engine", "vllm==0.12.0")
    assert run(*old, str(FIXTURE)).code == 0
    assert run(*old, "--strict", str(FIXTURE)).code == 1


def test_colour_only_where_it_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in run(*CONFLICT, str(FIXTURE)).out
    assert "\x1b[31mx\x1b[0m KV001" in run(*CONFLICT, "--color", "always", str(FIXTURE)).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run(*CONFLICT, str(FIXTURE)).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run(*CONFLICT, str(FIXTURE)).out
    assert "\x1b[" not in run(*CONFLICT, "--json", "--color", "always", str(FIXTURE)).out


def test_github_annotations_name_file_and_line(run: Run) -> None:
    done = run(*CONFLICT, "--format", "github", str(FIXTURE))
    first = done.out.splitlines()[0]
    assert first.startswith(f"::error file={FIXTURE}/config.json,line=37,title=KV001 on sm120::")
    assert "\n" not in first


def test_markdown(run: Run) -> None:
    done = run(*CONFLICT, "--format", "markdown", str(FIXTURE))
    assert done.out.startswith("## Verdict: conflict\n")
    assert "1. `vllm serve ... --kv-cache-dtype bfloat16`" in done.out


def test_verbose_shows_what_is_hidden(run: Run) -> None:
    brief, full = run(*CONFLICT, str(FIXTURE)).out, run(*CONFLICT, "-v", str(FIXTURE)).out
    assert "KV013" not in brief
    assert "more with -v" in brief
    assert "KV013" in full
    assert "Reasons: {" in full


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "--target", "sm999"), "sm999"),
        (("check", "--target", "sm120", "--engine", "vlm==1.0"), "vlm"),
        (("check", "--target", "sm120", "--nope"), "--nope"),
        (("apply", "--target", "sm120", "--recipe", "nope"), "unknown recipe 'nope'"),
        (("explain", "KV999"), "KV999"),
        (("chek",), "chek"),
    ],
)
def test_usage(words: tuple[str, ...], says: str, run: Run) -> None:
    needs_checkpoint = words[0] in {"check", "apply"}
    done = run(*words, *([str(FIXTURE)] if needs_checkpoint else []))
    assert done.code == 2
    assert says in done.err


def test_an_engine_without_facts_is_unknown(run: Run) -> None:
    done = run("check", "--target", "gfx942", "--engine", "vllm==0.33.0", str(FIXTURE))
    assert done.code == 4
    assert "unknown." in done.out
    assert "gfx942 is not covered" in done.out
    applied = run("apply", "--target", "gfx942", "--engine", "vllm==0.33.0", str(FIXTURE))
    assert applied.code == 4
    assert "--recipe kv-cache-model-dtype" in applied.err
    old = run("check", "--target", "sm120", "--engine", "vllm==0.5.0", str(FIXTURE))
    assert old.code == 4


def test_a_nightly_is_judged_by_the_release_it_precedes(run: Run) -> None:
    engine = "vllm==0.16.0rc2.dev313"
    done = run("check", "--target", "sm120", "--engine", engine, "--json", str(FIXTURE))
    verdict = json.loads(done.out)
    assert verdict["target"]["version"] == "0.16.0rc2.dev313"
    assert verdict["target"]["facts_version"] == "0.16.0"
    assert any("is judged as 0.16.0" in note for note in verdict["notes"])


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, run: Run) -> None:
    done = run(command, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: ckpt-patch {command}")
    assert max(map(len, done.out.splitlines())) <= 100


def test_small_commands(run: Run) -> None:
    assert run("--version").out == f"ckpt-patch, version {__version__}\n"
    assert "KV001" in run("explain").out
    assert run("explain", "kv001").out.startswith("# KV001 ")
    assert run("targets", "-q", "rtx-pro-6000").out == "sm120\n"
    assert "vllm==0.16.0\n" in run("engines", "-q").out
    assert run("recipes", "list", "-q").out.split() == [
        "kv-cache-fp8",
        "kv-cache-model-dtype",
        "kv-cache-repair",
    ]
    assert "null and the key stays" in run("recipes", "show", "kv-cache-model-dtype").out
    for words in (("explain",), ("targets",), ("engines",), ("recipes", "list")):
        assert json.loads(run(*words, "--json").out)["schema"].startswith("ckpt-patch/")


def test_recipes_are_validated(run: Run, tmp_path: Path) -> None:
    good = FIXTURE.parents[1] / "recipes" / "kv-cache-repair.toml"
    assert run("recipes", "validate", str(good)).code == 0
    bad = tmp_path / "bad.toml"
    bad.write_text("schema = 1")
    done = run("recipes", "validate", str(bad))
    assert done.code == 4
    assert "expected 'ckpt-patch/recipe@1'" in done.err


def test_log_and_diff_and_recover(run: Run, tmp_path: Path) -> None:
    root = Path(shutil.copytree(FIXTURE, tmp_path / "Kimi"))
    assert "never changed" in run("log", str(root)).out
    assert "No differences" in run("diff", str(root)).out
    run("apply", "--target", "sm120", "--engine", "vllm==0.16.0", str(root))
    assert run("log", "-q", str(root)).out == "0001.applied\n"
    assert run("diff", "--exit-code", str(root)).code == 1
    patches = json.loads(run("diff", "--patch", str(root)).out)["files"]
    assert [patch["file"] for patch in patches] == ["config.json", "hf_quant_config.json"]
    _values_are_compared_with_deepdiff(run, root)
    assert "Nothing to recover" in run("recover", str(root)).out
    assert run("status", "--exit-code", str(root)).code == 1
    undone = json.loads(run("undo", "--json", str(root)).out)
    assert undone["schema"] == "ckpt-patch/undo@1"
    assert run("status", "--exit-code", str(root)).code == 0


def _values_are_compared_with_deepdiff(run: Run, root: Path) -> None:
    config = json.loads((root / "config.json").read_text())
    config["rope_theta"] = 1.5
    (root / "config.json").write_text(json.dumps(config))
    assert run("diff", "--values", "--exit-code", str(root)).code == 1
    added, scheme, algorithm = run("diff", "--values", str(root)).out.splitlines()
    assert scheme.startswith("config.json: Type of root['quantization_config']['kv_cache_scheme']")
    assert added == "config.json: Item root['rope_theta'] (1.5) added to dictionary."
    assert algorithm.endswith('changed from str to NoneType and value changed from "FP8" to None.')
    told = json.loads(run("diff", "--values", "--json", str(root)).out)
    assert told["values"] == [added, scheme, algorithm]
    assert "diff" not in told
    config["rope_theta"] = "\x1b[2J\ud800"
    (root / "config.json").write_text(json.dumps(config))
    assert r"\x1b[2J\ud800" in run("diff", "--values", str(root)).out
    (root / "config.json").write_text("{")
    done = run("diff", "--values", str(root))
    assert (done.code, done.err.partition(":")[2][:12]) == (4, " config.json")
    assert run("undo", "--force", str(root)).code == 0
    assert run("apply", "--target", "sm120", "--engine", "vllm==0.16.0", str(root)).code == 0


def test_check_imports_no_heavy_library() -> None:
    code = (
        "import sys\nfrom patcher.cli.run import run\n"
        f"code = run({[*CONFLICT, str(FIXTURE)]!r})\n"
        "heavy = {'huggingface_hub', 'deepdiff', 'numpy', 'safetensors', 'filelock', 'jinja2'}\n"
        "sys.exit(str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_bug_leaves_a_note_and_no_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("patcher.cli.check.check", broken)
    done = run(*CONFLICT, str(FIXTURE))
    assert done.code == 70
    assert "RuntimeError: boom" in done.err
    assert "Traceback" not in done.err
    note = next((tmp_path / "xdg-cache" / "ckpt-patch").glob("crash-*.md"))
    assert str(note) in done.err
    assert "RuntimeError: boom" in note.read_text()


def test_a_reader_that_leaves_is_no_conflict() -> None:
    command = [sys.executable, "-m", "patcher", "check", "--target", "sm120", str(FIXTURE)]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read().decode()
        assert process.returncode == 141
        assert "Traceback" not in said
        assert "Exception ignored" not in said
