"""SGLang's facts against rows that its releases' own code gave elsewhere; see shared/oracle."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from patcher.engines import sglang
from patcher.engines.base import Launch
from patcher.engines.sglang import launch, pool
from patcher.engines.sglang.rules import load
from patcher.metadata.model import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

ORACLE = Path(__file__).resolve().parents[3] / "shared" / "oracle" / "sglang"
RELEASES = ("0.5.2", "0.5.8", "0.5.10", "0.5.14", "0.5.18", "0.5.20", "0.5.23")
#: Quark's ``from_config`` empties ``output_tensors`` in the parsed config, which the rows' harness
#: kept for its next row; a server reads the file once.
QUARK_READ_TWICE = "ValueError: The kv_cache quantization configuration is empty."

pytestmark = pytest.mark.skipif(not ORACLE.is_dir(), reason="shared/oracle is not here")


def _rows(kind: str, release: str) -> Iterator[dict[str, Any]]:
    path = ORACLE / f"{kind}-{release}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"there are no {kind} rows of {release}")
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


@pytest.mark.parametrize("release", RELEASES)
def test_server_args_answers_every_row_of_the_grid(release: str) -> None:
    facts = load(release)
    rows = [row for row in _rows("grid", release) if row.get("type") != "header"]
    for row in rows:
        found = launch.server_args(
            facts,
            cap=row["cap"],
            kind=row["model"],
            attention_backend_flag=row["attention_backend_flag"],
            decode_flag=row.get("decode_flag"),
            kv_flag=row["kv_flag"],
        )
        assert found is not None, row
        wanted = {
            name: row.get(name) for name in launch.Row.__struct_fields__ if "dsa_" not in name
        }
        assert {name: getattr(found, name) for name in wanted} == wanted, row
    assert len(rows) > 2000


@pytest.mark.parametrize("release", RELEASES)
def test_the_flags_are_those_of_the_command_line(release: str) -> None:
    header = next(row for row in _rows("grid", release) if row.get("type") == "header")
    assert list(sglang.flag_values(release)) == header["choices"]["kv_cache_dtype"]


@pytest.mark.parametrize("release", RELEASES)
def test_registry_refuses_what_the_rows_refuse(release: str) -> None:
    facts = load(release)
    for row in _rows("registry", release):
        found = launch.construction(facts, row["backend"], mla=row["mla"], cap=row["cap"])
        wanted = f"{row['err']}: {row['msg']}" if row["gate"] == "reject" else None
        assert found == wanted, row


def _documents(checkpoint: str) -> dict[str, Any]:
    folder = ORACLE / "ckpt" / checkpoint
    names = ("config.json", "hf_quant_config.json")
    return {
        name: json.loads((folder / name).read_text()) for name in names if (folder / name).exists()
    }


def _is_artefact(row: dict[str, Any]) -> bool:
    error = str(row.get("error") or row["server_args"].get("msg") or "")
    release_before_fix = row["version"] in {"0.5.2", "0.5.8"}
    return (
        ("fp8block" in row["ckpt"] and row["version"] == "0.5.2")
        or ("MagicMock" in error and row["cap"] == "gfx942" and release_before_fix)
        or error == QUARK_READ_TWICE
    )


@pytest.mark.parametrize("release", RELEASES)
def test_loader_and_pool_answer_every_checkpoint_row(release: str) -> None:
    facts = load(release)
    count = 0
    for row in _rows("ckpt", release):
        if _is_artefact(row):
            continue
        count += 1
        _compare_checkpoint(facts, row)
    assert count > 550


def _compare_checkpoint(facts: Any, row: dict[str, Any]) -> None:
    documents = _documents(row["ckpt"])
    given = pool.features(documents, describe(documents), row["cap"], row["quantization_flag"])
    found = pool.load(facts, given)
    assert found is not None, row
    refused = row["server_args"]
    if not refused["ok"]:
        assert found.stage == "config", row
        _same_error(f"{refused['err']}: {refused['msg']}", found.error)
        return
    if "error" in row and found.error is not None:
        _same_error(row["error"], found.error)
        return
    for name in ("quantization", "quant_config_class", "radix_attention_method"):
        assert getattr(found, name) == row.get(name), (name, row)
    if row["quant_config_class"]:
        assert found.kv_cache_quant_algo == row["kv_cache_quant_algo"], row
    kv_flag = refused["kv_cache_dtype"]
    dtype, error = pool.pool_dtype(facts, found, kv_flag, row["cap"])
    assert error == row.get("error"), row
    own = "bfloat16" if dtype == "model" else dtype
    assert (f"torch.{own}" if own else None) == row.get("kv_dtype"), row


def _same_error(wanted: str, found: str | None) -> None:
    assert found is not None
    assert wanted.startswith(found), (wanted, found)


def test_kimi_starts_on_a_workstation_card_with_an_fp8_cache() -> None:
    documents = _documents("kimi/flat_fp8scheme")
    found = sglang.answer("0.5.23", documents, describe(documents), Launch("sm120", "12.0"))
    assert found.refusals == ()
    assert found.selected == "triton"
    assert found.resolution is not None
    assert found.resolution.kv_cache_dtype == "fp8_e4m3"
