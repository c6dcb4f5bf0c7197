"""``mirror --config-only``, and what ``mirror --dry-run`` says of a repository on the Hub."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_cache, make_checkpoint, shard
from hub_server import COMMIT, Hub, Repository, running
from running import Run, snapshot

import patcher

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = "acme/Kimi"
FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
METADATA = {name: (FIXTURE / name).read_bytes() for name in ("config.json", "hf_quant_config.json")}
SHARD = "model-00001-of-00001.safetensors"
FILES = {
    **METADATA,
    "generation_config.json": b'{"temperature": 1.0}',
    "configuration_kimi.py": b"class KimiConfig: ...\n",
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": {"metadata": {}, "weight_map": {"w": SHARD}},
    SHARD: shard("w"),
    "original/params.json": b"{}",
}
FOLDER = [
    ".ckpt-patch", "config.json", "configuration_kimi.py", "generation_config.json",
    "hf_quant_config.json",
]  # fmt: skip
TARGET = ("--target", "sm120", "--engine", "vllm==0.16.0")
FINE = ("--target", "sm120", "--engine", "vllm==0.33.0")


@pytest.fixture
def kimi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkpoint that no test may change."""
    monkeypatch.chdir(tmp_path)
    root = make_checkpoint(tmp_path / "Kimi", FILES)
    before = snapshot(root)
    yield root
    assert snapshot(root) == before


def test_the_folder_holds_what_the_option_reads(kimi: Path, tmp_path: Path, run: Run) -> None:
    done = run("mirror", "--config-only", *TARGET, str(kimi), "folder")
    assert done.code == 0
    assert sorted(os.listdir("folder")) == FOLDER
    config = json.loads((tmp_path / "folder/config.json").read_bytes())
    assert config["quantization_config"]["kv_cache_scheme"] is None
    sidecar = json.loads((tmp_path / "folder/hf_quant_config.json").read_bytes())
    assert sidecar["quantization"]["kv_cache_quant_algo"] is None
    for name in ("generation_config.json", "configuration_kimi.py"):
        assert (tmp_path / "folder" / name).read_bytes() == FILES[name]
    assert "Serve it: vllm serve Kimi --hf-config-path folder" in done.out
    assert "Weights, tokenizer and processors still come from the checkpoint." in done.out
    assert run("check", *TARGET, "folder").code == 0


def test_again_replaced_quiet_and_json(kimi: Path, tmp_path: Path, run: Run) -> None:
    words = ("mirror", "--config-only", *TARGET, str(kimi), "folder")
    assert run(*words, "-q").out == f"{tmp_path / 'folder'}\n"
    before = snapshot(tmp_path / "folder")
    assert "Nothing to do: folder is this folder already." in run(*words).out
    assert snapshot(tmp_path / "folder") == before
    document = json.loads(run(*words, "--json").out)
    assert (document["schema"], document["outcome"]) == ("ckpt-patch/mirror@1", "current")
    assert document["manifest"]["scope"] == "config"
    assert document["serve"] == "vllm serve Kimi --hf-config-path folder"
    assert "Replaced the older" in run("mirror", "--config-only", *FINE, str(kimi), "folder").out
    assert (tmp_path / "folder/config.json").read_bytes() == METADATA["config.json"]
    assert "Replaced the older mirror" in run("mirror", *TARGET, str(kimi), "folder").out
    assert SHARD in os.listdir("folder")


def test_verify_looks_at_these_files_alone(tmp_path: Path, run: Run) -> None:
    root = make_checkpoint(tmp_path / "Kimi", FILES)
    folder = str(tmp_path / "folder")
    run("mirror", "--config-only", *TARGET, str(root), folder)
    (root / SHARD).write_bytes(b"other")
    (root / "tokenizer.json").unlink()
    done = run("verify", folder)
    assert (done.code, "as it was made, 4 files" in done.out) == (0, True)
    (root / "config.json").write_bytes(METADATA["config.json"] + b"\n")
    done = run("verify", folder)
    assert done.code == 1
    assert "base  config.json  has other content in the source now" in done.out
    again = done.out.rpartition("Make it anew: ")[2].strip()
    options = f"{' '.join(TARGET)} --recipe kv-cache-model-dtype --config-only"
    assert again == f"ckpt-patch mirror {options} {root} {folder}"
    assert run(*shlex.split(again)[1:]).code == 0
    assert run("verify", folder).code == 0


def test_dry_run_and_passthrough_make_nothing(kimi: Path, tmp_path: Path, run: Run) -> None:
    before = snapshot(tmp_path)
    done = run("mirror", "--config-only", "--dry-run", *TARGET, str(kimi), "folder")
    assert '+        "kv_cache_scheme": null,' in done.out
    assert "Nothing was made (--dry-run); it would be folder." in done.out
    done = run("mirror", "--config-only", "--passthrough", "-q", *FINE, str(kimi), "folder")
    assert done.out == f"{kimi}\n"
    assert snapshot(tmp_path) == before


def test_refusals(kimi: Path, tmp_path: Path, run: Run) -> None:
    make_checkpoint(tmp_path / "foreign", {"file": b""})
    before = snapshot(tmp_path)
    for words, code in (
        ((*TARGET, str(kimi), "foreign"), 3),
        ((*TARGET, str(kimi), str(kimi)), 2),
        ((*TARGET, str(kimi), "Kimi/inside"), 3),
        ((*TARGET, str(kimi)), 2),
        ((*TARGET, "--link", "copy", str(kimi), "folder"), 2),
        (("--target", "h100", "--engine", "sglang==0.5.23", str(kimi), "folder"), 3),
    ):
        done = run("mirror", "--config-only", *words)
        assert (words, done.code, done.out) == (words, code, "")
        assert "Hint: " in done.err
    assert "sglang reads the model's own folder" in done.err
    assert "ckpt-patch mirror --target sm90 --engine sglang==0.5.23" in done.err
    assert snapshot(tmp_path) == before


def mixed(kimi: dict[str, Any], *, listed: bool) -> dict[str, Any]:
    """A mixed-precision checkpoint, whose layers are listed in config.json or not."""
    config = json.loads(kimi["config.json"])
    sidecar = json.loads(kimi["hf_quant_config.json"])
    block = config["quantization_config"]
    block["quant_algo"] = sidecar["quantization"]["quant_algo"] = "MIXED_PRECISION"
    block["quant_method"] = "modelopt_mixed"
    layers = {"model.layers.0.mlp.gate_proj": {"quant_algo": "FP8"}}
    sidecar["quantization"]["quantized_layers"] = layers
    if listed:
        block["quantized_layers"] = layers
    return {"config.json": config, "hf_quant_config.json": sidecar}


@pytest.mark.parametrize("listed", [True, False])
def test_layers_that_vllm_reads_from_the_model_itself(
    tmp_path: Path, run: Run, *, listed: bool
) -> None:
    root = make_checkpoint(tmp_path / "mixed", mixed(METADATA, listed=listed))
    words = ("--recipe", "kv-cache-model-dtype", "--target", "sm120", "--engine", "vllm==0.33.0")
    done = run("mirror", "--config-only", *words, str(root), str(tmp_path / "folder"))
    assert done.code == (0 if listed else 3), done.err
    assert ("config.json has no quantized_layers" in done.err) is not listed


def test_where_only_the_sidecar_speaks_it_is_in_the_folder(tmp_path: Path, run: Run) -> None:
    """vLLM reads hf_quant_config.json beside the config.json that has no quantization_config."""
    config = json.loads(METADATA["config.json"])
    del config["quantization_config"]
    root = make_checkpoint(tmp_path / "m", {**METADATA, "config.json": config})
    done = run("mirror", "--config-only", *TARGET, str(root), str(tmp_path / "folder"))
    assert done.code == 0
    assert run("check", *TARGET, str(root)).code == 1
    assert run("check", *TARGET, str(tmp_path / "folder")).code == 0


def test_mistrals_format_is_told_by_its_weights(tmp_path: Path, run: Run) -> None:
    files = {**METADATA, "params.json": b"{}", "consolidated.safetensors": shard("w")}
    root = make_checkpoint(tmp_path / "m", files)
    done = run("mirror", "--config-only", *TARGET, str(root), str(tmp_path / "folder"))
    assert (done.code, "vLLM reads params.json" in done.err) == (3, True)


def test_a_snapshot_without_weights_will_do(tmp_path: Path, run: Run) -> None:
    root = make_cache(tmp_path / "hub", REPO, METADATA)
    done = run("mirror", "--config-only", *TARGET, str(root), str(tmp_path / "folder"))
    assert done.code == 0
    assert f"vllm serve {root} --hf-config-path" in done.out
    assert (tmp_path / "folder/config.json").is_file()
    assert not (tmp_path / "folder/config.json").is_symlink()


# On the Hub


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    from huggingface_hub import utils

    with running() as hub:
        yield hub
    close: Any = getattr(utils, "close_session", lambda: None)
    close()


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    from huggingface_hub import constants, file_download

    server.reset()
    encoded = {
        name: data if isinstance(data, bytes) else json.dumps(data).encode()
        for name, data in FILES.items()
    }
    server.repositories[REPO] = Repository(encoded)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    for module in (constants, file_download):
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    return server


def test_dry_run_of_a_hub_id_fetches_no_weights(hub: Hub, tmp_path: Path, run: Run) -> None:
    done = run("mirror", "--dry-run", *TARGET, REPO, "mirror")
    assert done.code == 0, done.err
    assert '+        "kv_cache_scheme": null,' in done.out
    assert "Files of its own: 2 patched, 5 copied." in done.out
    assert f"Weights: 1 file, {len(shard('w'))} bytes, --link auto." in done.out
    assert hub.weight_bytes() == 0
    assert f"/{REPO}/resolve/main/{SHARD}" not in hub.paths("GET")
    assert not (tmp_path / "mirror").exists()
    files = hub.repositories[REPO].files
    folder = tmp_path / f"cache/models--acme--Kimi/snapshots/{COMMIT}"
    missing = {name: len(data) for name, data in files.items() if not (folder / name).exists()}
    assert {SHARD, "tokenizer.json"} <= set(missing)
    assert (
        f"To be downloaded to the Hub cache first: {len(missing)} files, "
        f"{sum(missing.values())} bytes."
    ) in done.out
    document = json.loads(run("mirror", "--dry-run", "--json", *TARGET, REPO, "mirror").out)
    assert document["downloads"] == missing
    kinds = {file["path"]: file["kind"] for file in document["files"]}
    assert set(kinds) == set(files)
    assert [name for name, kind in kinds.items() if kind == "weights"] == [SHARD]


def test_what_is_foreseen_is_what_is_made(hub: Hub, run: Run) -> None:
    foreseen = json.loads(run("mirror", "--dry-run", "--json", *TARGET, REPO, "mirror").out)
    made = json.loads(run("mirror", "--json", *TARGET, REPO, "mirror").out)
    assert made["outcome"] == "made"
    shown = ("path", "kind", "size", "patch", "inverse")
    rows = [[{key: f[key] for key in shown} for f in d["files"]] for d in (foreseen, made)]
    assert rows[0] == rows[1]
    assert foreseen["manifest"]["folders"] == made["manifest"]["folders"]
    weights = {f["path"]: f["after_sha256"] for f in foreseen["files"] if f["kind"] == "weights"}
    assert weights == {SHARD: hub.repositories[REPO].etag(SHARD)}
    again = json.loads(run("mirror", "--dry-run", "--json", *TARGET, REPO, "mirror").out)
    assert again["downloads"] == {}


def test_dry_run_of_a_hub_id_refuses_what_mirror_would(hub: Hub, tmp_path: Path, run: Run) -> None:
    make_checkpoint(tmp_path / "foreign", {"file": b""})
    assert run("mirror", "--dry-run", *TARGET, REPO, "foreign").code == 3
    assert run("mirror", "--dry-run", *TARGET, REPO, "no/folder").code == 3
    offline = run("mirror", "--dry-run", "--no-network", *TARGET, REPO, "mirror")
    assert (offline.code, "is not complete here" in offline.err) == (4, True)
    assert hub.weight_bytes() == 0


def test_config_only_of_a_hub_id_fetches_no_weights(hub: Hub, run: Run) -> None:
    done = run("mirror", "--config-only", *TARGET, REPO, "folder")
    assert done.code == 0, done.err
    assert sorted(os.listdir("folder")) == FOLDER
    assert f"vllm serve {REPO} --revision {COMMIT} --hf-config-path folder" in done.out
    assert hub.weight_bytes() == 0
    assert run("verify", "folder").code == 0
    again = run("mirror", "--config-only", *TARGET, REPO, "folder")
    assert "Nothing to do" in again.out


def test_the_library_call(kimi: Path, tmp_path: Path) -> None:
    target = patcher.Target.parse("sm120", engine="vllm==0.16.0")
    made = patcher.mirror(kimi, tmp_path / "folder", target, config_only=True)
    assert (made.outcome, made.manifest.scope) == ("made", "config")
    assert patcher.check(made.path, target).outcome == "compatible"
