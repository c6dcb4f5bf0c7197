"""``mounts``: what is printed is what a shell, docker and Kubernetes take."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_checkpoint, shard
from running import Run, snapshot

from patcher.mounting import CONFIG_MAP_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
FILES = {
    "config.json": (FIXTURE / "config.json").read_bytes(),
    "hf_quant_config.json": (FIXTURE / "hf_quant_config.json").read_bytes(),
    "generation_config.json": b"{}",
    "model-00001-of-00001.safetensors": shard("w"),
}
TARGET = ("--target", "sm120", "--engine", "vllm==0.16.0")
AT = "/models/Kimi"


@pytest.fixture
def kimi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_checkpoint(tmp_path / "Kimi", FILES)


@pytest.fixture(params=["mirror", "config-only", "in place"])
def patched(request: pytest.FixtureRequest, kimi: Path, run: Run) -> Iterator[Path]:
    """A folder with a space in its name that holds patched files; printing changes nothing."""
    place = kimi.parent / "a mirror"
    if request.param == "in place":
        kimi.rename(place)
        assert run("apply", *TARGET, str(place)).code == 0
    else:
        more = ("--config-only",) if request.param == "config-only" else ()
        assert run("mirror", *more, *TARGET, str(kimi), str(place)).code == 0
    before = snapshot(kimi.parent)
    yield place
    assert snapshot(kimi.parent) == before


def expected(patched: Path) -> list[str]:
    names = ("config.json", "hf_quant_config.json")
    return [f"{patched}/{name}:{AT}/{name}:ro" for name in names]


def test_docker_options_survive_a_shell(patched: Path, run: Run) -> None:
    done = run("mounts", "--at", AT, str(patched))
    assert done.code == 0
    words = shlex.split(done.out.replace("\\\n", " "))
    assert words[0::2] == ["-v", "-v"]
    assert words[1::2] == expected(patched)
    assert done.out.count("\\\n") == 2
    assert f"at {AT} as well" in done.err
    quiet = run("mounts", "-q", "--at", f"{AT}/", str(patched))
    assert (shlex.split(quiet.out), quiet.err) == (words, "")


def test_json(patched: Path, run: Run) -> None:
    document = json.loads(run("mounts", "--json", "--at", AT, str(patched)).out)
    assert (document["schema"], document["config_map"]) == ("ckpt-patch/mounts@1", True)
    assert [
        f"{file['host_path']}:{file['container_path']}:ro" for file in document["files"]
    ] == expected(patched)
    config = document["files"][0]
    assert config["bytes"] == (patched / "config.json").stat().st_size
    assert config["read_only"] is True


def test_kubernetes_is_yaml_of_a_pod_spec(patched: Path, run: Run) -> None:
    yaml: Any = pytest.importorskip("yaml")
    done = run("mounts", "--format", "kubernetes", "--at", AT, str(patched))
    spec = yaml.safe_load(done.out)
    assert spec["volumes"] == [
        {"name": "a-mirror-patched", "configMap": {"name": "a-mirror-patched"}}
    ]
    (container,) = spec["containers"]
    assert container["volumeMounts"] == [
        {
            "name": "a-mirror-patched",
            "mountPath": f"{AT}/{name}",
            "subPath": name,
            "readOnly": True,
        }
        for name in ("config.json", "hf_quant_config.json")
    ]
    kubectl = shlex.split(done.out.splitlines()[0].removeprefix("# "))
    assert kubectl == [
        "kubectl", "create", "configmap", "a-mirror-patched",
        f"--from-file={patched}/config.json", f"--from-file={patched}/hf_quant_config.json",
    ]  # fmt: skip


@pytest.mark.parametrize("more", [0, 1])
def test_a_config_map_has_a_limit(kimi: Path, run: Run, more: int) -> None:
    yaml: Any = pytest.importorskip("yaml")
    run("mirror", *TARGET, str(kimi), "small")
    left = sum(path.stat().st_size for path in (kimi.parent / "small").glob("*config.json"))
    left -= len(FILES["generation_config.json"])
    padding = b" " * (CONFIG_MAP_LIMIT - left + more)
    make_checkpoint(kimi, {"config.json": FILES["config.json"] + padding})
    run("mirror", *TARGET, str(kimi), "large")
    document = json.loads(run("mounts", "--json", "--at", AT, "large").out)
    assert sum(file["bytes"] for file in document["files"]) == CONFIG_MAP_LIMIT + more
    assert document["config_map"] is (more == 0)
    done = run("mounts", "--format", "kubernetes", "--at", AT, "large")
    (volume,) = yaml.safe_load(done.out)["volumes"]
    if more == 0:
        assert volume["configMap"] == {"name": "large-patched"}
    else:
        assert volume["hostPath"] == {"path": str(kimi.parent / "large"), "type": "Directory"}
        assert "1,048,577 bytes are more than the 1 MiB of a ConfigMap" in done.out


def test_only_files_that_are_as_they_were_left(kimi: Path, run: Run) -> None:
    run("mirror", *TARGET, str(kimi), "whole")
    run("mirror", "--config-only", *TARGET, str(kimi), "config")
    run("apply", *TARGET, str(kimi))
    for folder, command in (("whole", "verify"), ("config", "verify"), ("Kimi", "status")):
        with (kimi.parent / folder / "config.json").open("ab") as file:
            file.write(b"\n")
        done = run("mounts", "--at", AT, folder)
        assert done.code == 3
        assert "not as ckpt-patch left them" in done.err
        assert f"Hint: ckpt-patch {command} {kimi.parent / folder}" in done.err


def test_nothing_patched(kimi: Path, run: Run) -> None:
    fine = ("--target", "sm120", "--engine", "vllm==0.33.0")
    run("mirror", *fine, str(kimi), "copy")
    for folder in ("Kimi", "copy"):
        done = run("mounts", "--at", AT, folder)
        assert done.code == 3
        assert "nothing is patched here" in done.err
        assert "ckpt-patch mirror --config-only" in done.err
    assert run("mounts", "--at", AT, "nowhere").code == 4


@pytest.mark.parametrize("at", ["models/x", "/", "", "/a\nb"])
def test_a_place_that_is_none(kimi: Path, run: Run, at: str) -> None:
    run("apply", *TARGET, str(kimi))
    done = run("mounts", "--at", at, str(kimi))
    assert done.code == 2
    assert "ckpt-patch mounts --at /models/NAME" in done.err


def test_a_colon_cannot_be_expressed(kimi: Path, run: Run) -> None:
    run("mirror", *TARGET, str(kimi), "a:b")
    done = run("mounts", "--at", AT, "a:b")
    assert (done.code, "has a colon" in done.err) == (3, True)
    assert run("mounts", "--at", AT, "--json", "a:b").code == 0
    assert run("mounts", "--at", AT, "--format", "kubernetes", "a:b").code == 0
