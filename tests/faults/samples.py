"""Small checkpoints to patch: two metadata files, plain or linked as in a Hugging Face cache."""

from __future__ import annotations

import os
from pathlib import Path

from patcher.edits import Change, FileEdit

MTIME_NS = 1_700_000_000_123_456_789

SCHEME = '{\n      "dynamic": false,\n      "num_bits": 8,\n      "type": "float"\n    }'

BEFORE = {
    "config.json": (
        '{\n  "model_type": "kimi_k2",\n  "quantization_config": {\n'
        f'    "kv_cache_scheme": {SCHEME},\n    "quant_method": "modelopt"\n  }}\n}}\n'
    ).encode(),
    "hf_quant_config.json": (
        b'{"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}\n'
    ),
}
AFTER = {
    "config.json": BEFORE["config.json"].replace(SCHEME.encode(), b"null"),
    "hf_quant_config.json": BEFORE["hf_quant_config.json"].replace(b'"FP8"', b"null"),
}
_POINTERS: dict[str, tuple[str, object]] = {
    "config.json": (
        "/quantization_config/kv_cache_scheme",
        {"dynamic": False, "num_bits": 8, "type": "float"},
    ),
    "hf_quant_config.json": ("/quantization/kv_cache_quant_algo", "FP8"),
}


def build(root: Path, *, linked: bool = False) -> Path:
    """Make the checkpoint; with ``linked``, its files are links to ``../blobs``."""
    root.mkdir(parents=True)
    home = root
    if linked:
        home = root.parent / "blobs"
        home.mkdir()
    for name, data in BEFORE.items():
        path = home / name
        path.write_bytes(data)
        path.chmod(0o640)
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
        if linked:
            (root / name).symlink_to(f"../blobs/{name}")
            os.utime(root / name, ns=(MTIME_NS - 5, MTIME_NS - 5), follow_symlinks=False)
    (root / "model.safetensors").write_bytes(b"weights")
    return root


def change(*names: str) -> Change:
    """The change that turns the KV-cache statements of the files into ``null``."""
    return Change(
        edits=tuple(_edit(name) for name in names or BEFORE),
        tool_version="0.1.0",
        recipe="kv-cache-model-dtype@1",
        recipe_sha256="ab" * 32,
        target={"gpu": "sm120", "engine": "vllm", "version": "0.16.0"},
        findings=("KV001",),
    )


def _edit(name: str) -> FileEdit:
    pointer, old = _POINTERS[name]
    return FileEdit(
        file=name,
        patch=(
            {"op": "test", "path": pointer, "value": old},
            {"op": "replace", "path": pointer, "value": None},
        ),
        inverse=(
            {"op": "test", "path": pointer, "value": None},
            {"op": "replace", "path": pointer, "value": old},
        ),
        before=BEFORE[name],
        after=AFTER[name],
    )


def picture(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything about every file around the checkpoint, except its journal."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(root.parent):
        folders[:] = sorted(each for each in folders if each != ".ckpt-patch")
        for name in sorted(files):
            path = Path(folder) / name
            own = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(root.parent))] = (
                path.is_symlink(),
                content,
                own.st_mode,
                own.st_uid,
                own.st_gid,
                own.st_mtime_ns,
            )
    return found


def edited(contents: dict[str, bytes]) -> dict[str, bytes]:
    """The same files after a person has changed something that the patch does not touch."""
    return contents | {"config.json": contents["config.json"].replace(b"kimi_k2", b"kimi_k3")}


def edit(root: Path) -> None:
    """Change the file as an editor does that saves in place."""
    path = root / "config.json"
    path.write_bytes(path.read_bytes().replace(b"kimi_k2", b"kimi_k3"))
