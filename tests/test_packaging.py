"""The wheel: what is in it, how big it is, and that it moves no package of an engine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

#: Pins as they stand in environments of the engines: transformers 4.57 (vLLM 0.16, SGLang 0.5.10)
#: wants huggingface_hub < 1; vLLM 0.16 wants filelock >= 3.16.1 and msgspec.
ENVIRONMENTS = {
    "vllm-0.16": ["huggingface_hub==0.36.0", "click==8.3.1", "packaging==25.0",
                  "safetensors==0.7.0", "filelock==3.20.0", "msgspec==0.20.0"],
    "sglang-0.5.10": ["huggingface_hub==0.34.0", "click==8.1.8", "packaging==24.2",
                      "safetensors==0.4.3", "filelock==3.16.1", "msgspec==0.19.0"],
    "vllm-0.33": ["huggingface_hub==2.4.0", "click==8.5.1", "packaging==26.4",
                  "safetensors==0.8.0", "filelock==4.3.1", "msgspec==0.23.0"],
    "sglang-0.5.23": ["huggingface_hub==2.0.0", "click==8.5.1", "packaging==26.0",
                      "safetensors==0.7.0", "filelock==3.25.2", "msgspec==0.21.1"],
}  # fmt: skip

MEGABYTE = 1000 * 1000


def require_index() -> None:
    try:
        socket.create_connection(("pypi.org", 443), timeout=5).close()
    except OSError:
        pytest.skip("the package index cannot be reached")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_index()
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), "."]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    return next(folder.glob("ckpt_patch-*.whl"))


@pytest.mark.resolver
def test_the_wheel_holds_its_data_and_is_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "patcher/_recipes/kv-cache-model-dtype.toml" in names
    assert "patcher/data/gpus.json" in names
    assert "patcher/data/findings/KV001.md" in names
    assert any(name.startswith("patcher/engines/facts/vllm/0.16.0") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"patcher"}
    assert wheel.stat().st_size <= 2 * MEGABYTE


@pytest.mark.resolver
def test_recipes_are_found_in_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "from patcher import recipes; print(recipes.folder(), *recipes.packaged())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    where = tmp_path / "patcher" / "_recipes"
    assert done.stdout.split() == [
        str(where), "kv-cache-fp8", "kv-cache-model-dtype", "kv-cache-repair",
    ]  # fmt: skip


@pytest.mark.resolver
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_it_installs_beside_an_engine_without_moving_its_packages(
    name: str, wheel: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    pins = ENVIRONMENTS[name]
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
        "--report", str(report), *pins, str(wheel),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    chosen = {
        item["metadata"]["name"].lower().replace("-", "_"): item["metadata"]["version"]
        for item in json.loads(report.read_text())["install"]
    }
    assert {pin: chosen[pin.split("==")[0]] for pin in pins} == {
        pin: pin.split("==")[1] for pin in pins
    }
    assert chosen["ckpt_patch"]
