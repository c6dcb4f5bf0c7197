"""``mirror`` and ``verify`` as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import make_cache, make_checkpoint, shard
from running import NOBODY, Run, as_nobody, make_reachable, snapshot

import patcher

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
SHARD = "model-00001-of-00001.safetensors"
FILES = {
    "config.json": (FIXTURE / "config.json").read_bytes(),
    "hf_quant_config.json": (FIXTURE / "hf_quant_config.json").read_bytes(),
    "chat_template.jinja": b"{{ messages }}",
    SHARD: shard("w"),
}
TARGET = ("--target", "sm120", "--engine", "vllm==0.16.0")
FINE = ("--target", "sm120", "--engine", "vllm==0.33.0")
NO_CURE = {
    "model_type": "glm_moe_dsa",
    "architectures": ["GlmMoeDsaForCausalLM"],
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_topk": 2048,
    "num_attention_heads": 64,
    "num_hidden_layers": 78,
    "dtype": "bfloat16",
}


@pytest.fixture
def kimi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_checkpoint(tmp_path / "Kimi", FILES)


def test_quiet_prints_the_destination_alone(kimi: Path, tmp_path: Path, run: Run) -> None:
    done = run("mirror", "-q", *TARGET, str(kimi), "mirror")
    assert (done.code, done.out, done.err) == (0, f"{tmp_path / 'mirror'}\n", "")
    again = run("mirror", "-q", *TARGET, str(kimi), "mirror")
    assert (again.code, again.out, again.err) == (0, done.out, "")
    assert run("check", *TARGET, "mirror").code == 0
    assert run("check", *TARGET, str(kimi)).code == 1


def test_the_same_in_words(kimi: Path, run: Run) -> None:
    done = run("mirror", *TARGET, "--link", "symlink", str(kimi), "mirror")
    assert done.code == 0
    for words in (
        'config.json           /quantization_config/kv_cache_scheme  {"dynamic": false',
        "KV cache: 35,136 -> 70,272 bytes per token (2 times).",
        "Files of its own: 2 patched, 1 copied.",
        "Weights: 1 file, 110 bytes, symlink: takes no space; a relative link",
        "Made mirror. Weights were neither read nor changed.",
        "ckpt-patch verify mirror",
    ):
        assert words in done.out
    again = run("mirror", *TARGET, "--link", "symlink", str(kimi), "mirror")
    assert "Nothing to do: mirror is this mirror already." in again.out
    copied = run("mirror", *TARGET, "--link", "copy", str(kimi), "mirror")
    assert "Replaced the older mirror mirror." in copied.out
    assert "copied, none was changed" in copied.out or "reflink: " in copied.out


def test_a_shell_gets_the_path(kimi: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m patcher mirror -q {' '.join(TARGET)} {kimi} 'a mirror'"
    script = f'exec ls "$({command})"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(FILES)
    assert (tmp_path / "a mirror").is_dir()


def test_json(kimi: Path, tmp_path: Path, run: Run) -> None:
    done = run("mirror", "--json", *TARGET, "--link", "hardlink", str(kimi), "mirror")
    document = json.loads(done.out)
    assert document["schema"] == "ckpt-patch/mirror@1"
    assert (document["outcome"], document["destination"]) == ("made", str(tmp_path / "mirror"))
    files = {file["path"]: file for file in document["files"]}
    assert files[SHARD]["link"] == "hardlink"
    assert files["config.json"]["kind"] == "patched"
    assert files["config.json"]["before_sha256"] != files["config.json"]["after_sha256"]
    assert files["config.json"]["inverse"][1]["op"] == "replace"
    assert document["plan"]["recipe"]["id"] == "kv-cache-model-dtype"
    verified = json.loads(run("verify", "--json", "mirror").out)
    assert verified == {
        "schema": "ckpt-patch/verify@1",
        "checkpoint": str(tmp_path / "mirror"),
        "ok": True,
        "source": str(kimi),
        "files": 4,
        "hashed": 0,
        "problems": [],
        "notes": [],
    }


def test_dry_run_writes_nothing(kimi: Path, tmp_path: Path, run: Run) -> None:
    before = snapshot(tmp_path)
    done = run("mirror", "--dry-run", *TARGET, str(kimi), "mirror")
    assert done.code == 0
    assert '+        "kv_cache_scheme": null,' in done.out
    assert "Weights: 1 file, 110 bytes, --link auto." in done.out
    assert run("mirror", "--dry-run", "-q", *TARGET, str(kimi), "mirror").out == (
        f"{tmp_path / 'mirror'}\n"
    )
    document = json.loads(run("mirror", "--dry-run", "--json", *TARGET, str(kimi), "mirror").out)
    assert document["outcome"] == "dry-run"
    assert snapshot(tmp_path) == before


def test_nothing_to_patch(kimi: Path, tmp_path: Path, run: Run) -> None:
    before = snapshot(tmp_path)
    done = run("mirror", "-q", "--passthrough", *FINE, str(kimi), "mirror")
    assert (done.code, done.out, done.err) == (0, f"{kimi}\n", "")
    document = json.loads(run("mirror", "--json", "--passthrough", *FINE, "Kimi", "mirror").out)
    assert (document["outcome"], document["destination"]) == ("passthrough", str(kimi))
    assert snapshot(tmp_path) == before
    made = run("mirror", *FINE, str(kimi), "mirror")
    assert "No patch is needed on this target; the metadata is an exact copy." in made.out
    assert (tmp_path / "mirror/config.json").read_bytes() == FILES["config.json"]
    needed = run("mirror", "-q", "--passthrough", *TARGET, str(kimi), "other")
    assert needed.out == f"{tmp_path / 'other'}\n"


def test_a_conflict_without_a_cure(tmp_path: Path, run: Run) -> None:
    root = make_checkpoint(tmp_path / "glm", {"config.json": NO_CURE})
    words = ("--target", "sm120", "--engine", "vllm==0.20.2", str(root), str(tmp_path / "mirror"))
    for options in ((), ("--passthrough",), ("--recipe", "kv-cache-model-dtype")):
        done = run("mirror", *options, *words)
        assert done.code == 3
        assert done.err.startswith("Error: ")
    assert sorted(os.listdir(tmp_path)) == ["glm"]


def test_a_verdict_that_is_unknown(kimi: Path, tmp_path: Path, run: Run) -> None:
    words = ("--target", "sm120", "--engine", "vllm==0.1.0", str(kimi), str(tmp_path / "mirror"))
    done = run("mirror", *words)
    assert done.code == 4
    assert not (tmp_path / "mirror").exists()


def test_refusals(kimi: Path, tmp_path: Path, run: Run) -> None:
    make_checkpoint(tmp_path / "foreign", {"file": b""})
    before = snapshot(tmp_path)
    for destination, code in (
        ("foreign", 3), ("foreign/file", 3), ("Kimi", 2), ("Kimi/x", 3), ("no/x", 3), ("", 2),
    ):  # fmt: skip
        done = run("mirror", *TARGET, str(kimi), destination)
        assert (destination, done.code, done.out) == (destination, code, "")
        assert "Traceback" not in done.err
    assert run("verify", "Kimi").code == 3
    assert run("verify", "nowhere").code == 4
    assert run("mirror", *TARGET, "nowhere", "mirror").code == 4
    assert snapshot(tmp_path) == before


def test_verify_in_words(kimi: Path, tmp_path: Path, run: Run) -> None:
    run("mirror", *TARGET, "--link", "symlink", str(kimi), "mirror")
    assert run("verify", "mirror").out == "mirror: as it was made, 4 files. No weights were read.\n"
    (kimi / SHARD).unlink()
    done = run("verify", "mirror")
    assert done.code == 1
    assert f"dangling  {SHARD}  is a link to ../Kimi/{SHARD}, which is gone" in done.out
    options = f"{' '.join(TARGET)} --recipe kv-cache-model-dtype --link symlink"
    again = f"ckpt-patch mirror {options} Kimi mirror\n"
    assert done.out.endswith(f"Make it anew: {again}")
    (tmp_path / "mirror/config.json").write_bytes(b"{}")
    done = run("verify", "-q", "mirror")
    assert done.out.splitlines() == ["edited config.json", f"base {SHARD}", f"dangling {SHARD}"]
    done = run("verify", "mirror")
    keep = "Make it anew, and keep what somebody did in it: mv mirror mirror.old && "
    assert done.out.endswith(f"{keep}{again}")
    make_checkpoint(kimi, {SHARD: FILES[SHARD]})
    (tmp_path / "mirror").rename(tmp_path / "mirror.old")
    assert run(*again.split()[1:]).code == 0
    assert run("verify", "mirror").code == 0


def test_verify_names_the_recipe_of_somebody_else(
    kimi: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = Path(__file__).parents[2] / "recipes" / "kv-cache-model-dtype.toml"
    text = packaged.read_text().replace('id = "kv-cache-model-dtype"', 'id = "mine"')
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert run("mirror", *TARGET, "--recipe", "mine.toml", str(kimi), "mirror").code == 0
    Path("mirror", SHARD).unlink()
    again = run("verify", "mirror").out.rpartition("Make it anew: ")[2]
    assert "--recipe mine.toml Kimi mirror" in again
    assert run(*again.split()[1:]).code == 0
    assert run("verify", "mirror").code == 0


def test_verify_with_hashes(kimi: Path, run: Run) -> None:
    run("mirror", *TARGET, "--link", "copy", str(kimi), "mirror")
    done = run("verify", "--hash", "mirror")
    assert done.out == "mirror: as it was made, 4 files. Weights whose hash is right: 1 file.\n"


def test_a_cache_is_named_by_its_repository(tmp_path: Path, run: Run) -> None:
    make_cache(tmp_path / "hub", "nvidia/Kimi-K2.5-NVFP4", FILES)
    folder = str(tmp_path / "hub/models--nvidia--Kimi-K2.5-NVFP4")
    done = run("mirror", "--json", *TARGET, folder, str(tmp_path / "mirror"))
    source = json.loads(done.out)["manifest"]["source"]
    assert (source["origin"], source["repo_id"]) == ("cache", "nvidia/Kimi-K2.5-NVFP4")
    assert run("verify", str(tmp_path / "mirror")).code == 0


def test_a_place_that_cannot_be_written(kimi: Path, tmp_path: Path, run: Run) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    make_reachable(tmp_path)
    done = as_nobody(run, "mirror", *TARGET, str(kimi), str(closed / "mirror"))
    assert done.code == 3
    assert "nothing can be made here: Permission denied" in done.err


def test_another_users_checkpoint_can_be_mirrored(kimi: Path, tmp_path: Path, run: Run) -> None:
    """What ``apply`` refuses and points to a mirror for."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    mine = tmp_path / "mine"
    mine.mkdir()
    os.chown(mine, NOBODY, NOBODY)
    make_reachable(tmp_path)
    (kimi / ".ckpt-patch").mkdir()
    done = as_nobody(run, "mirror", "-q", *TARGET, str(kimi), str(mine / "mirror"))
    assert (done.code, done.out) == (0, f"{mine / 'mirror'}\n")
    assert as_nobody(run, "verify", str(mine / "mirror")).code == 0


def test_five_hundred_gigabytes_in_about_a_second(tmp_path: Path, run: Run) -> None:
    """Sparse files stand for the shards: whoever reads them needs minutes, or runs out of room."""
    names = [f"model-{number:05}-of-00119.safetensors" for number in range(1, 120)]
    index = {"metadata": {}, "weight_map": {f"w{number}": n for number, n in enumerate(names)}}
    root = make_checkpoint(tmp_path / "Kimi", FILES | {"model.safetensors.index.json": index})
    (root / SHARD).unlink()
    for name in names:
        with (root / name).open("wb") as file:
            file.truncate(4_200_000_000)
    start = time.monotonic()
    for link in ("auto", "symlink"):
        done = run("mirror", *TARGET, "--link", link, str(root), str(tmp_path / link))
        assert done.code == 0
        assert "119 files, 499.8 GB" in done.out
        assert run("verify", str(tmp_path / link)).code == 0
    assert time.monotonic() - start < 10


def test_the_library_call(kimi: Path, tmp_path: Path) -> None:
    target = patcher.Target.parse("sm120", engine="vllm==0.16.0")
    made = patcher.mirror(str(kimi), tmp_path / "mirror", target, link="hardlink")
    assert (made.path, made.outcome) == (str(tmp_path / "mirror"), "made")
    assert patcher.check(made.path, target).outcome == "compatible"
    assert patcher.mirror(kimi, made.path, target, link="hardlink").outcome == "current"
    with pytest.raises(patcher.CkptPatchError):
        patcher.mirror(kimi, kimi, target)
