"""The support table, as printed and as JSON, and its rows against the engines' own answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conformance import sglang_rows, vllm_rows
from conformance.comparing import Comparison, compare

from patcher.matrix import matrix

if TYPE_CHECKING:
    from running import Run


def rows(run: Run, *words: str) -> list[dict[str, Any]]:
    done = run("matrix", *words, "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["schema"] == "ckpt-patch/matrix@1"
    found: list[dict[str, Any]] = document["rows"]
    return found


def only(found: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    (row,) = [row for row in found if values.items() <= row.items()]
    return row


KIMI = {"attention": "mla-dense-576", "dtype": "bfloat16"}


def test_the_famous_case_before_and_after(run: Run) -> None:
    target = ("--target", "rtx-pro-6000")
    new = rows(run, "--engine", "vllm==0.33.0", *target)
    assert {row["gpu"] for row in new} == {"sm120"}
    row = only(new, **KIMI, kv_cache_dtype="fp8_e4m3")
    assert (row["capability"], row["valid"], row["selected"]) == (
        "12.0",
        ["TRITON_MLA"],
        "TRITON_MLA",
    )
    assert row["rejected"]["FLASHINFER_MLA_SPARSE_SM120"][0] == "non-sparse not supported"
    assert (row["layer"], row["error"]) == (None, None)
    old = only(rows(run, "--engine", "vllm==0.16.0", *target), **KIMI, kv_cache_dtype="fp8_e4m3")
    assert (old["valid"], old["selected"], old["layer"]) == ([], None, None)
    assert old["rejected"]["TRITON_MLA"] == ["kv_cache_dtype not supported"]
    assert old["error"].startswith("ValueError: No valid attention backend found for cuda with")


def test_the_layer_is_told_where_it_differs(run: Run) -> None:
    found = rows(run, "--engine", "vllm==0.33.0", "--target", "sm86", "--target", "sm100")
    assert [row["gpu"] for row in found] == sorted((row["gpu"] for row in found), reverse=True)
    refused = only(found, **KIMI, gpu="sm86", kv_cache_dtype="fp8")
    assert (refused["selected"], refused["layer"]["accepts"]) == ("TRITON_MLA", False)
    assert refused["layer"]["error"].startswith("ValueError: FP8 KV cache is not supported by the")
    hooked = only(
        found,
        gpu="sm100",
        attention="mla-sparse-576-glm5",
        dtype="bfloat16",
        kv_cache_dtype="auto",
    )
    assert (hooked["layer"]["accepts"], hooked["layer"]["kv_cache_dtype"]) == (True, "fp8_e4m3")


def test_every_question_is_answered_once(run: Run) -> None:
    found = rows(run, "--engine", "vllm==0.12.0")
    names = ("gpu", "attention", "dtype", "kv_cache_dtype")
    assert len({tuple(row[name] for name in names) for row in found}) == len(found) == 980
    assert {row["gpu"] for row in found} == {
        *("sm75", "sm80", "sm86", "sm89", "sm90"),
        *("sm100", "sm103", "sm110", "sm120", "sm121"),
    }


def test_a_backend_can_be_asked_for(run: Run) -> None:
    words = ("--engine", "vllm==0.33.0", "--target", "sm90", "--backend", "triton_mla")
    found = rows(run, *words)
    assert {row["selected"] for row in found} == {"TRITON_MLA", None}
    fp8 = only(found, **KIMI, kv_cache_dtype="fp8")
    assert (fp8["valid"][0], fp8["selected"]) == ("FLASHMLA", "TRITON_MLA")
    shown = run("matrix", *words).out
    assert shown.startswith("vLLM 0.33.0 with --attention-backend TRITON_MLA: ")
    gqa = "  gqa-64, gqa-96, gqa-128, gqa-256, mla-sparse-576, mla-sparse-576-glm5\n"
    assert f"{gqa}    -  every value\n" in shown


def test_sglang_has_the_columns_of_its_own_launch(run: Run) -> None:
    found = rows(run, "--engine", "sglang==0.5.23", "--target", "sm120")
    plain = {"cap": "sm120", "attention_backend_flag": None, "decode_flag": None}
    row = only(found, **plain, model="kimi", kv_flag="auto")
    assert (row["ok"], row["attention_backend"], row["page_size"]) == (True, "triton", 1)
    refused = only(found, **plain, model="mla", kv_flag="fp4_mx_block16")
    assert (refused["ok"], refused["err"]) == (False, "AssertionError")
    assert refused["msg"].endswith("but got triton")


def test_for_people(run: Run) -> None:
    shown = run("matrix", "--engine", "vllm==0.33.0", "--target", "sm120")
    lines = shown.out.splitlines()
    assert lines[2] == "sm120 (RTX PRO 6000 / RTX 50xx)"
    start = lines.index("  mla-dense-576")
    assert lines[start + 1] == "    TRITON_MLA  auto, float16, bfloat16, fp8, fp8_e4m3"
    assert "    FLASHINFER_MLA_SPARSE_SM120 (holds fp8_ds_mla)  auto, bfloat16, fp8, fp8_e4m3" in (
        lines
    )
    quiet = run("matrix", "--engine", "vllm==0.33.0", "--target", "sm120", "-q").out.splitlines()
    assert "sm120 mla-dense-576 bfloat16 fp8_e4m3 TRITON_MLA" in quiet
    assert "sm120 mla-dense-576 bfloat16 nvfp4 -" in quiet


@pytest.mark.parametrize("engine", ["vllm==0.33.0", "vllm==0.11.2", "sglang==0.5.23"])
def test_nothing_is_wider_than_a_terminal_and_all_gpus_are_there(run: Run, engine: str) -> None:
    shown = run("matrix", "--engine", engine).out
    assert max(map(len, shown.splitlines())) <= 100
    assert all(f"{name} (" in shown for name in ("sm75", "sm90", "sm103", "sm121"))
    if engine == "vllm==0.33.0":
        assert "- (TRITON_MLA refuses)" in shown
        assert shown.count("Jetson Thor") == 1


def test_facts_that_were_borrowed_are_named(run: Run) -> None:
    nightly = run("matrix", "--engine", "vllm==0.16.0rc2.dev313", "--target", "sm120")
    assert nightly.out.splitlines()[1] == (
        "note  vllm 0.16.0rc2.dev313 is judged as 0.16.0, the release it precedes"
    )
    words = ("matrix", "--engine", "vllm==0.16.0rc2.dev313", "--target", "sm120", "--json")
    document = json.loads(run(*words).out)
    assert (document["version"], document["facts_version"]) == ("0.16.0rc2.dev313", "0.16.0")
    assert "is judged as 0.16.0" in document["notes"][0]
    newest = run("matrix", "--engine", "vllm", "--target", "sm120").out
    assert "note  no version was named; " in newest


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--engine", "vlm==0.33.0"), 2, "did you mean vllm?"),
        (("--engine", "llama.cpp==1"), 2, "does not name an engine release"),
        (("--engine", "vllm==0.5.0"), 4, "Hint: known: 0.11.2, 0.12.0, "),
        (("--engine", "vllm==0.33.0", "--target", "sm999"), 2, "unknown GPU 'sm999'"),
        (("--engine", "vllm==0.33.0", "--target", "gfx942"), 4, "Hint: known: sm75, sm80, "),
        (("--engine", "sglang==0.5.23", "--target", "gfx1100"), 4, "gfx942, gfx950"),
        (("--engine", "vllm==0.33.0", "--backend", "NOPE"), 2, "CUTLASS_MLA, FLASHINFER, "),
        (("--engine", "sglang==0.5.23", "--backend", "nope"), 2, "Hint: known: triton, "),
        (("--engine", "trtllm==1.2.0"), 4, "TensorRT-LLM selects is not known"),
        ((), 2, "no engine is named"),
    ],
)
def test_what_is_unknown_is_refused(run: Run, words: tuple[str, ...], code: int, says: str) -> None:
    done = run("matrix", *words)
    assert (done.code, done.out) == (code, "")
    assert says in done.err


# --- the releases' own answers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "kind", "release", "cells"),
    [
        (vllm_rows, vllm_rows.grid, "0.16.0", 980),
        (vllm_rows, vllm_rows.layers, "0.16.0", 980),
        (vllm_rows, vllm_rows.grid, "0.33.0", 3080),
        (vllm_rows, vllm_rows.layers, "0.33.0", 3080),
        (sglang_rows, sglang_rows.grid, "0.5.23", 10176),
    ],
)
@pytest.mark.usefixtures("shared")
def test_the_rows_are_the_releases_own_answers(
    module: Any, kind: Any, release: str, cells: int
) -> None:
    result = compare(Comparison(Path(), module.ENGINE, release, kind.__name__), kind(release))
    assert result.differences == []
    assert (result.cells, result.agreeing, result.ignored) == (cells, cells, 0)


def test_a_difference_is_counted() -> None:
    pairs = iter([(1, 1), None, (1, 2)])
    result = compare(Comparison(Path(), "vllm", "0.1", "rows"), pairs)
    assert (result.cells, result.agreeing, result.ignored) == (2, 1, 1)
    assert result.differences == ["vllm 0.1 rows: 1\n    we say: 2"]


def test_the_library_gives_the_newest_release() -> None:
    table = matrix("sglang")
    assert table.version == table.facts_version
    assert table.notes == (
        f"no version was named; {table.facts_version} is the newest release with facts",
    )
