"""The patch as a pull request: the text's facts, the files, and the command that opens it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_cache, make_checkpoint
from running import Run, snapshot
from upload_recorder import Writable, running

import patcher
import patcher.api
from patcher import Target, exporting, gpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.exporting import Export
    from patcher.subject import Subject
    from patcher.verdict import ReleaseAnswer

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
METADATA = {name: (FIXTURE / name).read_bytes() for name in ("config.json", "hf_quant_config.json")}
SM120 = ("--target", "sm120")
REPO = "acme/Kimi"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WRITTEN = [
    "changes.diff",
    "files/config.json",
    "files/hf_quant_config.json",
    "patch.json",
    "pull-request.md",
]


@pytest.fixture(scope="module", autouse=True)
def asked_once() -> Iterator[None]:
    """Every release answers the same question once; all are asked in each export."""
    answers: dict[str, tuple[ReleaseAnswer, ...]] = {}
    survey = exporting._survey

    def remembered(subject: Subject, engine: str, gpu: gpus.Gpu, target: Target) -> Any:
        question = repr((subject.values, engine, gpu, target))
        if question not in answers:
            answers[question] = survey(subject, engine, gpu, target)
        return answers[question]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "_survey", remembered)
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint, in the current directory."""
    monkeypatch.chdir(tmp_path)
    return make_checkpoint(tmp_path / "Kimi", METADATA)


@pytest.fixture(scope="module")
def exported() -> Export:
    found = patcher.api.export(FIXTURE, Target.parse("sm120"))
    assert found is not None
    return found


def content(folder: Path) -> Mapping[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# The text


def test_the_text(here: Path, run: Run) -> None:
    done = run("export", *SM120, "Kimi")
    assert done.code == 0
    opens = "ckpt-patch export --target sm120 -o pull-request Kimi"
    assert f"To open it: {opens}   (says the command)\n" in done.err
    assert "hf upload " in run(*opens.split()[1:]).out
    text = done.out
    plan = patcher.plan(here, Target.parse("sm120"))
    printed = patcher.check(here, Target.parse("sm120", engine="vllm==0.17.1")).errors[0].detail
    assert text.startswith("# KV-cache metadata: let vLLM 0.14.0 to 0.17.1 start on sm120\n\n")
    for fact in (
        "- `config.json:37` `/quantization_config/kv_cache_scheme` is "
        '`{"dynamic": false, "num_bits": 8, "type": "float"}` (fp8_e4m3)\n'
        '- `hf_quant_config.json:8` `/quantization/kv_cache_quant_algo` is `"FP8"` (fp8_e4m3)\n',
        "vLLM 0.14.0 to 0.17.1 obeys this and does not start on sm120 (RTX PRO 6000 / RTX 50xx). "
        f"vLLM 0.17.1 prints:\n\n```\n{printed}\n```\n",
        "2 values in 2 files. No weights change, and no other byte of these files does.",
        "grows from 35,136 to 70,272 bytes per token (2 times)",
        f"```diff\n{plan.diff()}```\n",
        "- `pip install 'vllm>=0.18.0'`: ",
        "- `vllm serve ... --kv-cache-dtype bfloat16`: ",
        "\nuvx ckpt-patch check --target sm120 --engine vllm==0.17.1 ORG/NAME\n",
    ):
        assert fact in text
    for edit in plan.edits:
        row = f"| `{edit.file}` | `{edit.before_sha256}` | `{edit.after_sha256}` |"
        assert row in text
    assert str(here.parent) not in text


def test_the_row_of_the_target_comes_first(here: Path, run: Run) -> None:
    rows = [line for line in run("export", *SM120, str(here)).out.splitlines() if "| vLLM" in line]
    assert rows[0] == (
        "| vLLM | sm89, sm110, sm120, sm121 | "
        "0.11.2 to 0.13.0: starts, cache holds the model's own dtype"
        "<br>0.14.0 to 0.17.1: **does not start**"
        "<br>0.18.0 to 0.33.0: starts, cache holds fp8_e4m3 | "
        "0.11.2 to 0.33.0: starts, cache holds the model's own dtype |"
    )


def test_the_evidence_is_what_check_answers(exported: Export) -> None:
    seen = [(row.engine, gpu) for row in exported.evidence for gpu in row.gpus]
    assert len(seen) == len(set(seen))
    for row in exported.evidence:
        for gpu in row.gpus:
            asked = patcher.check(FIXTURE, Target.parse(gpu, engine=row.engine))
            if asked.target.version is None:  # no engine is installed here
                assert asked.judgement.portable == row.before
    left_out = {(e, g.name) for e in ("vllm", "sglang", "trtllm") for g in gpus.gpus()} - set(seen)
    assert left_out
    for engine, gpu in left_out:
        states = {
            item.state
            for item in patcher.check(FIXTURE, Target.parse(gpu, engine=engine)).judgement.portable
        }
        assert states <= {"unknown", "no-backend"}


def test_no_cell_of_the_changed_files_refuses_on_the_target(exported: Export) -> None:
    own = exported.own()
    assert own is not None
    assert {item.state for item in own.after} == {"ignores"}
    assert exported.after.outcome == "compatible"


def test_a_release_that_is_named_is_the_one_that_speaks(here: Path, run: Run) -> None:
    text = run("export", *SM120, "--engine", "vllm==0.16.0", str(here)).out
    assert "vLLM 0.16.0 prints:" in text
    assert "--engine vllm==0.16.0 ORG/NAME" in text
    assert "SGLang" not in text


def test_a_hostile_value_stays_in_its_span(tmp_path: Path, run: Run) -> None:
    config = json.loads(METADATA["config.json"])
    config["quantization_config"]["kv_cache_scheme"]["type"] = "float"
    config["quantization_config"]["kv_cache_scheme"]["note"] = "`</details> ```| <script>"
    root = make_checkpoint(tmp_path / "K", METADATA | {"config.json": config})
    text = run("export", *SM120, str(root)).out
    line = next(line for line in text.splitlines() if line.startswith("- `config.json:"))
    assert "````" in line  # a fence that is longer than what it holds
    body = text.partition("```diff")[2]
    assert "<script>" in body


# The files


def test_the_files(here: Path, run: Run) -> None:
    before = snapshot(here)
    done = run("export", *SM120, "-o", "pr", "Kimi")
    assert done.code == 0
    assert snapshot(here) == before
    found = content(here.parent / "pr")
    assert list(found) == WRITTEN
    plan = patcher.plan(here, Target.parse("sm120"))
    for edit in plan.edits:
        assert found[f"files/{edit.file}"] == edit.after
    assert found["changes.diff"].decode() == plan.diff()
    assert found["pull-request.md"].decode() == run("export", *SM120, "Kimi").out
    assert json.loads(found["patch.json"]) == {e.file: list(e.patch) for e in plan.edits}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_applies_the_diff(here: Path, run: Run) -> None:
    run("export", *SM120, "-o", "pr", "Kimi")
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(here.parent)}
    command = ["git", "apply", "../pr/changes.diff"]
    subprocess.run(command, cwd=here, check=True, env=environment)
    for name in METADATA:
        assert (here / name).read_bytes() == (here.parent / "pr/files" / name).read_bytes()


def test_another_library_applies_the_json_patch(here: Path, run: Run) -> None:
    jsonpatch = pytest.importorskip("jsonpatch")
    run("export", *SM120, "-o", "pr", "Kimi")
    found = content(here.parent / "pr")
    for name, operations in json.loads(found["patch.json"]).items():
        patched = jsonpatch.apply_patch(json.loads(METADATA[name]), operations)
        assert patched == json.loads(found[f"files/{name}"])


def test_nothing_is_overwritten(here: Path, run: Run) -> None:
    folder = make_checkpoint(here.parent / "pr", {"patch.json": b"mine", "other": b"mine"})
    done = run("export", *SM120, "-o", "pr", "Kimi")
    assert done.code == 3
    assert "pr: already has patch.json, with other content. Nothing was written" in done.err
    assert content(folder) == {"other": b"mine", "patch.json": b"mine"}
    assert run("export", *SM120, "-o", "pr", "--force", "Kimi").code == 0
    assert content(folder)["patch.json"] != b"mine"
    assert content(folder)["other"] == b"mine"
    before = snapshot(folder)
    assert run("export", *SM120, "-o", "pr", "Kimi").code == 0  # the same again
    assert snapshot(folder) == before


def test_a_file_in_the_place_of_the_folder(here: Path, run: Run) -> None:
    (here.parent / "pr").write_bytes(b"mine")
    done = run("export", *SM120, "-o", "pr", "Kimi")
    assert done.code == 5
    assert "Traceback" not in done.err
    assert (here.parent / "pr").read_bytes() == b"mine"


# Where it comes from


def test_a_patched_checkpoint_gives_the_same_as_before(here: Path, run: Run) -> None:
    assert run("export", *SM120, "-o", "before", "Kimi").code == 0
    assert run("apply", *SM120, "Kimi").code == 0
    assert run("export", "-o", "after", "Kimi").code == 0  # the target is in the record
    assert content(here.parent / "after") == content(here.parent / "before")


def test_two_patches_are_one(here: Path, run: Run) -> None:
    quant = json.loads(METADATA["hf_quant_config.json"])
    quant["quantization"]["kv_cache_quant_algo"] = None
    make_checkpoint(here, {"hf_quant_config.json": quant})
    original = snapshot(here)
    assert run("apply", *SM120, "Kimi").code == 0
    config = (here / "config.json").read_bytes()
    assert b'"kv_cache_scheme": null' in config
    assert run("export", "-o", "pr", "Kimi").code == 0
    found = content(here.parent / "pr")
    assert list(json.loads(found["patch.json"])) == ["config.json"]
    assert found["files/config.json"] == config
    assert run("undo", "Kimi").code == 0
    assert {k: v for k, v in snapshot(here).items() if ".ckpt-patch" not in k} == original


def test_an_edited_checkpoint_is_refused(here: Path, run: Run) -> None:
    run("apply", *SM120, "Kimi")
    (here / "config.json").write_bytes((here / "config.json").read_bytes() + b"\n")
    done = run("export", "Kimi")
    assert done.code == 3
    assert "is edited, so its files do not hold what ckpt-patch made of them" in done.err
    assert "Hint: ckpt-patch status " in done.err


def test_a_mirror_names_its_source(here: Path, run: Run) -> None:
    assert run("mirror", *SM120, "Kimi", "M").code == 0
    done = run("export", "M")
    assert done.code == 3
    assert f"Hint: ckpt-patch export --target sm120 {here}" in done.err


def test_a_cached_snapshot_knows_its_repository(tmp_path: Path, run: Run) -> None:
    root = make_cache(tmp_path / "cache", REPO, METADATA, commit=COMMIT)
    done = run("export", *SM120, "-o", str(tmp_path / "pr"), str(root))
    assert f"hf upload {REPO} " in done.out
    text = (tmp_path / "pr" / "pull-request.md").read_text()
    assert f"--engine vllm==0.17.1 {REPO}@{COMMIT}\n" in text
    assert str(tmp_path) not in text


def test_nothing_to_export(here: Path, run: Run) -> None:
    words = ("export", "--target", "sm90", "-o", "pr", "Kimi")
    assert run(*words).out == (
        "Nothing to export: what is declared keeps no known release from starting on sm90. "
        "Nothing was written.\nLook at it: ckpt-patch check --target sm90 Kimi\n"
    )
    assert json.loads(run(*words, "--json").out)["outcome"] == "nothing"
    assert not (here.parent / "pr").exists()
    assert patcher.api.export(here, Target.parse("sm90")) is None


def test_unknown_is_no_answer(here: Path, run: Run) -> None:
    targets = [Target(gpu, "vllm") for gpu in gpus.gpus()]
    unknown = [each for each in targets if patcher.check(here, each).outcome == "unknown"]
    if not unknown:
        pytest.skip("everything is known about this model")
    done = run("export", "--target", unknown[0].gpu.name, "--engine", "vllm", str(here))
    assert (done.code, done.out) == (4, "")


# Formats


def test_json(here: Path, run: Run) -> None:
    document = json.loads(run("export", *SM120, "--json", "-o", "pr", "Kimi").out)
    assert (document["schema"], document["outcome"]) == ("ckpt-patch/export@1", "exported")
    assert document["repo_id"] is None
    assert document["text"] == (here.parent / "pr" / "pull-request.md").read_text()
    assert document["diff"] == (here.parent / "pr" / "changes.diff").read_text()
    assert [file["file"] for file in document["files"]] == sorted(METADATA)
    assert {row["engine"] for row in document["evidence"]} == {"vllm", "sglang", "trtllm"}
    assert document["open"].startswith("hf upload ORG/NAME pr/files . --create-pr ")


@pytest.mark.usefixtures("here")
def test_quiet(run: Run) -> None:
    diff = run("export", *SM120, "-q", "Kimi")
    assert (diff.out.splitlines()[0], diff.err) == ("--- a/config.json", "")
    assert run("export", *SM120, "-q", "-o", "pr", "Kimi").out == "pr\n"


# The command that is printed


def test_the_printed_command_opens_the_pull_request(tmp_path: Path, run: Run) -> None:
    client = Path(sys.executable).with_name("hf")
    if not client.exists():
        pytest.skip("the hf command is not installed")
    root = make_cache(tmp_path / "cache", REPO, METADATA, commit=COMMIT)
    done = run("export", *SM120, "-o", str(tmp_path / "a pr"), str(root))
    command = done.out.splitlines()[-1].strip()
    with running() as hub:
        hub.repositories[REPO] = Writable(dict(METADATA))
        environment = os.environ | {
            "PATH": f"{client.parent}{os.pathsep}{os.environ['PATH']}",
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": "hf_x",
            "HF_HOME": str(tmp_path / "home"),
        }
        subprocess.run(command, shell=True, check=True, env=environment, capture_output=True)
        header, *files = hub.posted("/commit/")[0].body
    text = content(tmp_path / "a pr")
    assert f"--commit-message '{header['value']['summary']}' " in command
    assert header["value"]["description"].strip() == text["pull-request.md"].decode().strip()
    sent: dict[str, Any] = {line["value"]["path"]: line["value"]["content"] for line in files}
    assert set(sent) == set(METADATA)
    for name, data in sent.items():
        assert base64.b64decode(data) == text[f"files/{name}"]
