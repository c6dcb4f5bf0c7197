from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher import jsontext
from patcher.metadata import blocks, forms
from patcher.metadata.declarations import Declaration, Missing, find, missing_required

CORPUS = Path(__file__).resolve().parents[1].parent / "shared" / "corpus"
FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
FP8_TEXT = json.dumps(FP8)


def read(files: dict[str, str]) -> dict[str, jsontext.Document]:
    return {name: jsontext.read(text.encode(), source=name) for name, text in files.items()}


def stated(file: str, text: str) -> list[Declaration]:
    return list(find(read({file: text})))


def summary(found: list[Declaration]) -> list[tuple[str, int, str, str, str]]:
    return [(one.pointer, one.line, one.producer, one.scope, one.meaning) for one in found]


# Each form of the census: file, text, and every statement expected in it.
FORMS = {
    "modelopt sidecar": (
        "hf_quant_config.json",
        """{
    "producer": {"name": "modelopt", "version": "0.45.0"},
    "quantization": {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8"
    }
}""",
        [("/quantization/kv_cache_quant_algo", 5, "modelopt", "main", "fp8_e4m3")],
    ),
    "modelopt sidecar with a scheme too": (
        "hf_quant_config.json",
        """{"quantization": {
    "kv_cache_scheme": "NVFP4",
    "kv_cache_quant_algo": null
}}""",
        [
            ("/quantization/kv_cache_scheme", 2, "modelopt", "main", "nvfp4"),
            ("/quantization/kv_cache_quant_algo", 3, "modelopt", "main", "none"),
        ],
    ),
    "modelopt flat sidecar": (
        "hf_quant_config.json",
        '{"quant_algo": "NVFP4",\n"kv_cache_scheme": '
        + FP8_TEXT
        + ',\n"kv_cache_quant_algo": "INT8"}',
        [
            ("/kv_cache_scheme", 2, "modelopt", "main", "fp8_e4m3"),
            ("/kv_cache_quant_algo", 3, "modelopt", "main", "int8"),
        ],
    ),
    "modelopt sidecar that engines find by its ending": (
        "orig_hf_quant_config.json",
        '{"quantization": {"kv_cache_quant_algo": "fp8"}}',
        [("/quantization/kv_cache_quant_algo", 1, "modelopt", "main", "fp8_e4m3")],
    ),
    "modelopt below a directory": (
        "base_model/config.json",
        '{"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": "FP8"}}',
        [("/quantization_config/kv_cache_scheme", 1, "modelopt", "main", "fp8_e4m3")],
    ),
    "modelopt inline dict": (
        "config.json",
        '{"quantization_config": {"quant_method": "modelopt",\n"kv_cache_scheme": '
        + FP8_TEXT
        + "}}",
        [("/quantization_config/kv_cache_scheme", 2, "modelopt", "main", "fp8_e4m3")],
    ),
    "modelopt inline dict that is dynamic": (
        "config.json",
        """{"quantization_config": {"quant_method": "modelopt_fp4",
"kv_cache_scheme": {"dynamic": true, "num_bits": 4, "type": "FLOAT"}}}""",
        [("/quantization_config/kv_cache_scheme", 2, "modelopt", "main", "nvfp4")],
    ),
    "modelopt 0.31 without quant_method": (
        "config.json",
        '{"quantization_config": {"quant_algo": "FP8", "kv_cache_scheme": "FP8"}}',
        [("/quantization_config/kv_cache_scheme", 1, "modelopt", "main", "fp8_e4m3")],
    ),
    "modelopt 0.33 by quant_library": (
        "config.json",
        '{"quantization_config": {"quant_library": "modelopt", "kv_cache_scheme": "NVFP4_AFFINE"}}',
        [("/quantization_config/kv_cache_scheme", 1, "modelopt", "main", "nvfp4_affine")],
    ),
    "modelopt string of AngelSlim": (
        "config.json",
        '{"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": "static"}}',
        [("/quantization_config/kv_cache_scheme", 1, "modelopt", "main", "fp8_e4m3")],
    ),
    "modelopt algorithm beside quant_method fp8": (
        "config.json",
        """{"quantization_config": {
"quant_method": "fp8", "moe_quant_algo": "NVFP4",
"kv_cache_quant_algo": null}}""",
        [("/quantization_config/kv_cache_quant_algo", 3, "modelopt", "main", "none")],
    ),
    "modelopt nested inside config.json, and beside it": (
        "config.json",
        """{"quantization_config": {
"quant_method": "modelopt",
"kv_cache_quant_algo": null,
"quantization": {
    "quant_algo": "FP8",
    "kv_cache_quant_algo": "FP8"}}}""",
        [
            ("/quantization_config/kv_cache_quant_algo", 3, "modelopt", "main", "none"),
            (
                "/quantization_config/quantization/kv_cache_quant_algo",
                6,
                "modelopt",
                "main",
                "fp8_e4m3",
            ),
        ],
    ),
    "quant_cfg": (
        "quant_cfg.json",
        '{"kv_cache_quant_algo": "NVFP4",\n"quantization": {"kv_cache_quant_algo": "FP8"}}',
        [
            ("/kv_cache_quant_algo", 1, "modelopt", "main", "nvfp4"),
            ("/quantization/kv_cache_quant_algo", 2, "modelopt", "main", "fp8_e4m3"),
        ],
    ),
    "compressed-tensors static fp8": (
        "config.json",
        """{"quantization_config": {"quant_method": "compressed-tensors",
"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"},
  "input_activations": {"num_bits": 8, "type": "float"}, "output_activations": null}},
"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true}}}""",
        [("/quantization_config/kv_cache_scheme", 4, "compressed-tensors", "main", "fp8_e4m3")],
    ),
    "compressed-tensors null below text_config": (
        "config.json",
        """{"text_config": {"quantization_config": {"quant_method": "compressed_tensors",
"kv_cache_scheme": null}}}""",
        [
            (
                "/text_config/quantization_config/kv_cache_scheme",
                2,
                "compressed-tensors",
                "text_config",
                "none",
            )
        ],
    ),
    "compressed-tensors nvfp4": (
        "config.json",
        """{"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme":
{"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}}}""",
        [("/quantization_config/kv_cache_scheme", 1, "compressed-tensors", "main", "nvfp4")],
    ),
    "compressed-tensors defaults": (
        "config.json",
        '{"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {}}}',
        [("/quantization_config/kv_cache_scheme", 1, "compressed-tensors", "main", "int8")],
    ),
    "compressed-tensors takes no string": (
        "config.json",
        '{"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": "FP8"}}',
        [("/quantization_config/kv_cache_scheme", 1, "compressed-tensors", "main", "unreadable")],
    ),
    "compressed-tensors attention group": (
        "config.json",
        """{"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
"group_0": {"targets": ["Linear"], "weights": {}, "input_activations": {"num_bits": 8}},
"group/1": {
  "targets": ["LlamaAttention"], "weights": null,
  "input_activations": {"num_bits": 8, "type": "float"}}}}}""",
        [
            (
                "/quantization_config/config_groups/group~11/input_activations",
                5,
                "compressed-tensors",
                "main",
                "fp8_e4m3",
            )
        ],
    ),
    "compressed-tensors 0.5 outputs": (
        "config.json",
        """{"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
"group_0": {"targets": ["re:.*k_proj", "re:.*v_proj"], "weights": {"num_bits": 8},
  "input_activations": {"num_bits": 8},
  "output_activations": {"num_bits": 8, "type": "float"}}}}}""",
        [
            (
                "/quantization_config/config_groups/group_0/output_activations",
                4,
                "compressed-tensors",
                "main",
                "fp8_e4m3",
            )
        ],
    ),
    "compression_config": (
        "config.json",
        """{"compression_config": {"kv_cache_scheme": {"num_bits": 8, "type": "int"},
"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}}""",
        [
            ("/compression_config/kv_cache_scheme", 1, "compressed-tensors", "main", "int8"),
            (
                "/compression_config/quantization_config/kv_cache_scheme",
                2,
                "compressed-tensors",
                "main",
                "fp8_e4m3",
            ),
        ],
    ),
    "auto-round through compressed-tensors": (
        "config.json",
        """{"quantization_config": {"quant_method": "compressed-tensors", "provider": "auto-round",
"kv_cache_scheme": {"num_bits": 8, "type": "float"},
"attention_input_activations": {"targets": ["LlamaAttention"],
   "input_activations": {"num_bits": 8, "type": "float"}}}}""",
        [
            ("/quantization_config/kv_cache_scheme", 2, "compressed-tensors", "main", "fp8_e4m3"),
            (
                "/quantization_config/attention_input_activations",
                3,
                "auto-round",
                "main",
                "fp8_e4m3",
            ),
        ],
    ),
    "auto-round native": (
        "config.json",
        """{"quantization_config": {"quant_method": "auto-round",
"static_kv_dtype": "float8_e4m3fn",
"static_attention_dtype": "fp4", "static_kv_granularity": "head"}}""",
        [
            ("/quantization_config/static_kv_dtype", 2, "auto-round", "main", "fp8_e4m3"),
            ("/quantization_config/static_attention_dtype", 3, "auto-round", "main", "nvfp4"),
        ],
    ),
    "inc": (
        "config.json",
        '{"quantization_config": {"quant_method": "inc", "kv_cache_scheme": ' + FP8_TEXT + "}}",
        [("/quantization_config/kv_cache_scheme", 1, "inc", "main", "fp8_e4m3")],
    ),
    "autofp8": (
        "config.json",
        '{"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": "static"}}',
        [("/quantization_config/kv_cache_scheme", 1, "autofp8", "main", "fp8_e4m3")],
    ),
    "hifp8": (
        "config.json",
        """{"quantization_config": {"quant_method": "hifp8", "kv_cache_dtype": "fp8_e4m3fn",
"kv_cache_scheme": "dynamic"}}""",
        [
            ("/quantization_config/kv_cache_dtype", 1, "hifp8", "main", "fp8_e4m3"),
            ("/quantization_config/kv_cache_scheme", 2, "hifp8", "main", "fp8_e4m3"),
        ],
    ),
    "higgs fork": (
        "config.json",
        '{"quantization_config": {"kv_cache_scheme": {"quant_method": "higgs_dense_2bit"}}}',
        [("/quantization_config/kv_cache_scheme", 1, "unknown", "main", "unreadable")],
    ),
    "ascend": (
        "config.json",
        """{"quantization_config": {"quant_method": "mxfp8",
"li_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": "true", "symmetric": "true"},
"comp_cache_scheme": {"num_bits": 8, "type": "int"},
"kv_quant_type": "C8"}, "kv_cache_type": null}""",
        [
            ("/quantization_config/li_cache_scheme", 2, "ascend", "main", "fp8_e4m3"),
            ("/quantization_config/comp_cache_scheme", 3, "ascend", "main", "int8"),
            ("/quantization_config/kv_quant_type", 4, "ascend", "main", "int8"),
            ("/kv_cache_type", 4, "ascend", "main", "none"),
        ],
    ),
    "qwen-1": (
        "config.json",
        '{"model_type": "qwen",\n"use_cache_quantization": true, "use_cache_kernel": true}',
        [("/use_cache_quantization", 2, "qwen", "main", "int8")],
    ),
    "qwen-1 off": (
        "config.json",
        '{"use_cache_quantization": false}',
        [("/use_cache_quantization", 1, "qwen", "main", "none")],
    ),
    "mistral": (
        "params.json",
        '{"dim": 4096,\n"quantization": {"quant_method": "compressed-tensors",\n"kv_cache_scheme": '
        + FP8_TEXT
        + "}}",
        [("/quantization/kv_cache_scheme", 3, "mistral", "main", "fp8_e4m3")],
    ),
    "transformers": (
        "generation_config.json",
        '{"cache_implementation": "quantized",\n"cache_config": {"backend": "HQQ", "nbits": 2}}',
        [
            ("/cache_implementation", 1, "transformers", "main", "int2"),
            ("/cache_config", 2, "transformers", "main", "int2"),
        ],
    ),
    "transformers in config.json, four bits unless stated": (
        "config.json",
        '{"cache_implementation": "quantized"}',
        [("/cache_implementation", 1, "transformers", "main", "int4")],
    ),
    "transformers, another cache": (
        "generation_config.json",
        '{"cache_implementation": "static", "cache_config": {"nbits": 4}}',
        [],
    ),
    "tensorrt-llm checkpoint": (
        "config.json",
        '{"architecture": "LlamaForCausalLM",\n"quantization": {"kv_cache_quant_algo": "INT8"}}',
        [("/quantization/kv_cache_quant_algo", 2, "tensorrt-llm", "main", "int8")],
    ),
    "tensorrt-llm engine": (
        "config.json",
        '{"pretrained_config": {"quantization": {"kv_cache_quant_algo": null}}}',
        [
            (
                "/pretrained_config/quantization/kv_cache_quant_algo",
                1,
                "tensorrt-llm",
                "main",
                "none",
            )
        ],
    ),
    "quark": (
        "config.json",
        """{"quantization_config": {"quant_method": "quark",
"export": {"kv_cache_group": ["*k_proj", "*v_proj"]},
"kv_cache_quant_config": {"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}},
"layer_quant_config": {
  "*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}},
  "model.layers.0.self_attn.v_proj": {"output_tensors": {"dtype": "fp8_e4m3"}},
  "*q_proj": {"output_tensors": {"dtype": "int8"}},
  "*o_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}}}}""",
        [
            ("/quantization_config/export/kv_cache_group", 2, "quark", "main", "fp8_e4m3"),
            ("/quantization_config/kv_cache_quant_config", 3, "quark", "main", "fp8_e4m3"),
            (
                "/quantization_config/layer_quant_config/*k_proj/output_tensors",
                5,
                "quark",
                "main",
                "fp8_e4m3",
            ),
            (
                "/quantization_config/layer_quant_config/model.layers.0.self_attn.v_proj/output_tensors",
                6,
                "quark",
                "main",
                "fp8_e4m3",
            ),
            (
                "/quantization_config/layer_quant_config/*q_proj/output_tensors",
                7,
                "quark",
                "main",
                "int8",
            ),
        ],
    ),
    "quark, off": (
        "config.json",
        """{"quantization_config": {"quant_method": "quark", "export": {"kv_cache_group": []},
"kv_cache_quant_config": {},
"layer_quant_config": {"*k_proj": {"output_tensors": null}}}}""",
        [
            ("/quantization_config/export/kv_cache_group", 1, "quark", "main", "none"),
            ("/quantization_config/kv_cache_quant_config", 2, "quark", "main", "none"),
        ],
    ),
    "quark, layers that differ": (
        "config.json",
        """{"quantization_config": {"quant_method": "quark",
"export": {"kv_cache_group": ["*kv_b_proj", "*kv_a_proj"]},
"layer_quant_config": {
"*kv_b_proj": {"output_tensors": {"dtype": "fp8_e4m3"}},
"*kv_a_proj": {"output_tensors": {"dtype": "int8"}}}}}""",
        [
            ("/quantization_config/export/kv_cache_group", 2, "quark", "main", "unreadable"),
            (
                "/quantization_config/layer_quant_config/*kv_b_proj/output_tensors",
                4,
                "quark",
                "main",
                "fp8_e4m3",
            ),
            (
                "/quantization_config/layer_quant_config/*kv_a_proj/output_tensors",
                5,
                "quark",
                "main",
                "int8",
            ),
        ],
    ),
    "quark in its own fp8 mode": (
        "config.json",
        '{"quantization_config": {"quant_method": "fp8", "export": {"kv_cache_group": ["*k"]}}}',
        [("/quantization_config/export/kv_cache_group", 1, "quark", "main", "fp8_e4m3")],
    ),
}


@pytest.mark.parametrize(("file", "text", "expected"), FORMS.values(), ids=FORMS)
def test_every_form_is_found_with_place_and_meaning(
    file: str, text: str, expected: list[tuple[str, int, str, str, str]]
) -> None:
    assert summary(stated(file, text)) == expected


@pytest.mark.parametrize(("file", "text", "expected"), FORMS.values(), ids=FORMS)
def test_the_value_is_the_one_at_the_pointer(file: str, text: str, expected: list[Any]) -> None:
    found = find(documents := read({file: text}))
    assert len(found) == len(expected)
    for one in found:
        assert one.file == file
        assert jsontext.resolve(documents[file].value, one.pointer) is one.value


@pytest.mark.parametrize(("file", "text", "expected"), FORMS.values(), ids=FORMS)
def test_the_neutral_value_turns_the_statement_off(
    file: str, text: str, expected: list[Any]
) -> None:
    documents = read({file: text})
    value = documents[file].value
    for one in find(documents):
        *path, last = jsontext.parse_pointer(one.pointer)
        parent = jsontext.resolve(value, jsontext.format_pointer(path))
        parent[last] = one.neutral
    left = stated(file, json.dumps(value))
    assert {one.meaning for one in left} <= {"none"}
    assert len(left) <= len(expected)


def test_neutral_values() -> None:
    neutral = {
        one.pointer.rpartition("/")[2]: one.neutral
        for text in (FORMS["quark"][1], FORMS["qwen-1"][1], FORMS["autofp8"][1])
        for one in stated("config.json", text)
    }
    assert neutral == {
        "kv_cache_group": [],
        "kv_cache_quant_config": {},
        "output_tensors": None,
        "use_cache_quantization": False,
        "kv_cache_scheme": None,
    }


@pytest.mark.parametrize(
    "scope",
    [
        "text_config",
        "llm_config",
        "language_config",
        "thinker_config",
        "thinker_config/text_config",
        "talker_config",
        "talker_config/text_config",
    ],
)
def test_nested_configs_are_searched(scope: str) -> None:
    value: Any = {"quantization_config": {"kv_cache_quant_algo": "FP8"}}
    for key in reversed(scope.split("/")):
        value = {key: value}
    found = stated("config.json", json.dumps(value))
    pointer = f"/{scope}/quantization_config/kv_cache_quant_algo"
    assert summary(found) == [(pointer, 1, "modelopt", scope, "fp8_e4m3")]


def test_statements_come_file_by_file_and_line_by_line() -> None:
    found = find(
        read(
            {
                "hf_quant_config.json": '{"quantization": {"kv_cache_quant_algo": "FP8"}}',
                "config.json": '{"use_cache_quantization": true,\n"text_config": {\n'
                '"quantization_config": {"kv_cache_scheme": "FP8"}},\n'
                '"quantization_config": {"kv_cache_scheme": "FP8"}}',
            }
        )
    )
    assert [(one.file, one.line, one.scope) for one in found] == [
        ("hf_quant_config.json", 1, "main"),
        ("config.json", 1, "main"),
        ("config.json", 3, "text_config"),
        ("config.json", 4, "main"),
    ]


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("FP8", "fp8_e4m3"),
        ("fp8", "fp8_e4m3"),
        ("torch.float8_e5m2", "fp8_e5m2"),
        ("NVFP4", "nvfp4"),
        ("nvfp4_affine", "nvfp4_affine"),
        ("MXFP8", "mxfp8"),
        ("INT8", "int8"),
        ("INT4", "int4"),
        ("none", "none"),
        (None, "none"),
        ("", "unreadable"),
        ("auto", "unreadable"),
        ("FP6", "unreadable"),
        (8, "unreadable"),
        (True, "unreadable"),
        (["FP8"], "unreadable"),
        ({"num_bits": 8, "type": "float"}, "unreadable"),
    ],
)
def test_meaning_of_an_algorithm(value: Any, meaning: str) -> None:
    text = json.dumps({"quantization": {"kv_cache_quant_algo": value}})
    assert [one.meaning for one in stated("hf_quant_config.json", text)] == [meaning]


@pytest.mark.parametrize(
    ("value", "modelopt", "compressed"),
    [
        ({"num_bits": 8, "type": "float"}, "fp8_e4m3", "fp8_e4m3"),
        ({"num_bits": 4, "type": "float"}, "nvfp4", "nvfp4"),
        ({"num_bits": 8, "type": "int"}, "int8", "int8"),
        ({"num_bits": 4, "type": "int"}, "int4", "int4"),
        ({"num_bits": 8}, "unreadable", "int8"),
        ({"type": "float"}, "unreadable", "fp8_e4m3"),
        ({"num_bits": True, "type": "float"}, "unreadable", "unreadable"),
        ({"num_bits": "8", "type": "float"}, "unreadable", "unreadable"),
        ({"num_bits": [4, 3], "type": "float"}, "unreadable", "unreadable"),
        ({"num_bits": 16, "type": "float"}, "unreadable", "unreadable"),
        ({"num_bits": 8, "type": 1}, "unreadable", "unreadable"),
        ("static", "fp8_e4m3", "unreadable"),
        ([], "unreadable", "unreadable"),
        (False, "unreadable", "unreadable"),
        (None, "none", "none"),
    ],
)
def test_meaning_of_a_scheme(value: Any, modelopt: str, compressed: str) -> None:
    said = [
        one.meaning
        for method in ("modelopt", "compressed-tensors")
        for one in stated(
            "config.json",
            json.dumps({"quantization_config": {"quant_method": method, "kv_cache_scheme": value}}),
        )
    ]
    assert said == [modelopt, compressed]


@pytest.mark.parametrize(
    ("targets", "weights", "states"),
    [
        (["LlamaAttention"], None, True),
        (["re:.*self_attn$"], None, True),
        (["re:.*self_attn"], {"num_bits": 8}, True),
        (["re:.*self_attn.*"], None, True),
        (["re:.*self_attn.*"], {"num_bits": 8}, False),
        (["Linear"], {"num_bits": 8}, False),
        (["Linear"], None, False),
        (["re:.*attn.*(fused_wqa_wkv|wq_b|wo_a|wo_b)$"], {"num_bits": 8}, False),
        (["re:.*in_proj_qkv"], {"num_bits": 8}, False),
        ([8, None], None, False),
        ("LlamaAttention", None, False),
    ],
)
def test_only_groups_that_target_attention_modules_imply_a_quantized_cache(
    targets: Any,
    weights: Any,
    states: bool,  # noqa: FBT001
) -> None:
    group = {"targets": targets, "weights": weights, "input_activations": {"num_bits": 8}}
    block = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    found = stated("config.json", json.dumps({"quantization_config": block}))
    assert [one.meaning for one in found] == (["int8"] if states else [])


@pytest.mark.parametrize(
    ("targets", "states"),
    [
        (["re:.*k_proj"], True),
        (["re:.*v_proj$"], True),
        (["re:.*(k|v)_proj"], True),
        (["re:.*(k_proj|v_proj)$"], True),
        (["re:.*[kv]_proj$"], True),
        (["re:.*q_proj"], False),
        (["re:.*o_proj", "Linear"], False),
    ],
)
def test_outputs_of_key_and_value_projections_are_the_cache(
    targets: list[str],
    states: bool,  # noqa: FBT001
) -> None:
    group = {"targets": targets, "output_activations": {"num_bits": 8}}
    block = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    found = stated("config.json", json.dumps({"quantization_config": block}))
    assert [one.meaning for one in found] == (["int8"] if states else [])


def nested(algorithm: Any, *, key: bool, **more: Any) -> dict[str, Any]:
    inner = {"quant_algo": algorithm, "group_size": 16, **more}
    return {"quantization": {**inner, "kv_cache_quant_algo": None} if key else inner}


@pytest.mark.parametrize("algorithm", ["NVFP4", "nvfp4", "W4A16_NVFP4", "MXFP8"])
def test_a_deleted_key_that_vllm_demands(algorithm: str) -> None:
    text = json.dumps(nested(algorithm, key=False), indent=4)
    assert missing_required(read({"hf_quant_config.json": text})) == (
        Missing("hf_quant_config.json", "/quantization/kv_cache_quant_algo", 2),
    )
    assert find(read({"hf_quant_config.json": text})) == ()


def test_a_deleted_key_inside_config_json() -> None:
    block = {"quant_method": "modelopt_fp4", **nested("NVFP4", key=False)}
    text = json.dumps({"model_type": "llama", "quantization_config": block}, indent=2)
    assert missing_required(read({"config.json": text})) == (
        Missing("config.json", "/quantization_config/quantization/kv_cache_quant_algo", 5),
    )


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("hf_quant_config.json", nested("NVFP4", key=True)),
        ("hf_quant_config.json", nested("FP8", key=False)),
        ("hf_quant_config.json", nested("MIXED_PRECISION", key=False)),
        ("hf_quant_config.json", nested(None, key=False)),
        ("hf_quant_config.json", {"quant_algo": "NVFP4"}),
        ("hf_quant_config.json", {"quantization": "NVFP4"}),
        (
            "config.json",
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        ),
        (
            "config.json",
            {"quantization_config": {"quant_method": "awq", **nested("NVFP4", key=False)}},
        ),
        ("generation_config.json", nested("NVFP4", key=False)),
    ],
)
def test_nothing_is_missing(file: str, value: Any) -> None:
    assert missing_required(read({file: json.dumps(value)})) == ()


def corpus_statements() -> list[tuple[Path, list[tuple[str, Any]]]]:
    """``INDEX.tsv`` states pointer=value, one statement per file."""
    if not CORPUS.is_dir():
        return []
    with (CORPUS / "INDEX.tsv").open(encoding="utf-8", newline="") as index:
        rows = list(csv.DictReader(index, delimiter="\t", quoting=csv.QUOTE_NONE))
    table = []
    for row in rows:
        if row["kv_statements"] == "see file":
            continue
        pointer, _, value = row["kv_statements"].partition("=")
        expected = [] if pointer == "-" else [(pointer, json.loads(value))]
        table.append((CORPUS / row["directory"] / row["file"], expected))
    return table


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")
def test_corpus_states_exactly_what_its_index_says() -> None:
    table = corpus_statements()
    assert len(table) == 103
    for path, expected in table:
        documents = {path.name: jsontext.read(path.read_bytes(), source=path.name)}
        found = find(documents)
        assert [(one.pointer, one.value) for one in found] == expected, path
        assert missing_required(documents) == (), path
        for one in found:
            line = documents[path.name].text.splitlines()[one.line - 1]
            assert one.pointer.rpartition("/")[2] in line, path
            assert one.meaning == ("none" if one.value is None else "fp8_e4m3"), path


SHAPES = {
    "autofp8_static_kv_quantization_config.json": (
        "config.json",
        [("/quantization_config/kv_cache_scheme", 8, "autofp8", "main", "fp8_e4m3")],
    ),
    "mistral_params.json": (
        "params.json",
        [("/quantization/kv_cache_scheme", 11, "mistral", "main", "fp8_e4m3")],
    ),
    "modelopt_eagle_drafter_config.json": (
        "config.json",
        [
            (
                "/quantization_config/quantization/kv_cache_quant_algo",
                13,
                "modelopt",
                "main",
                "fp8_e4m3",
            )
        ],
    ),
    "modelopt_flat_hf_quant_config.json": (
        "hf_quant_config.json",
        [("/kv_cache_scheme", 12, "modelopt", "main", "fp8_e4m3")],
    ),
    "quark_fp8_kv_quantization_config.json": (
        "config.json",
        [
            (
                "/quantization_config/layer_quant_config/*k_proj/output_tensors",
                39,
                "quark",
                "main",
                "fp8_e4m3",
            ),
            (
                "/quantization_config/layer_quant_config/*v_proj/output_tensors",
                58,
                "quark",
                "main",
                "fp8_e4m3",
            ),
            ("/quantization_config/kv_cache_quant_config", 67, "quark", "main", "fp8_e4m3"),
            ("/quantization_config/export/kv_cache_group", 85, "quark", "main", "fp8_e4m3"),
        ],
    ),
    "tencent--Hy3-FP8_quantization_config.json": (
        "config.json",
        [("/quantization_config/kv_cache_scheme", 9, "autofp8", "main", "fp8_e4m3")],
    ),
    "transformers_quantized_cache_generation_config.json": (
        "generation_config.json",
        [
            ("/cache_implementation", 3, "transformers", "main", "int4"),
            ("/cache_config", 4, "transformers", "main", "int4"),
        ],
    ),
    "trtllm_checkpoint_config.json": (
        "config.json",
        [("/quantization/kv_cache_quant_algo", 10, "tensorrt-llm", "main", "fp8_e4m3")],
    ),
    "vllm_sglang_kv_cache_scales.json": ("kv_cache_scales.json", []),
}


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")
def test_corpus_shapes() -> None:
    folder = CORPUS / "_shapes"
    assert {path.name for path in folder.iterdir()} == set(SHAPES)
    for name, (file, expected) in SHAPES.items():
        found = stated(file, (folder / name).read_text(encoding="utf-8"))
        assert summary(found) == expected, name


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
WORDS = st.sampled_from(
    ["FP8", "static", "quantized", "float", "k_proj", "LlamaAttention", "*", ""]
)
NAMES = st.sampled_from(
    ["num_bits", "type", "dtype", "output_tensors", "targets", "input_activations", "nbits", "name"]
)
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
PRODUCERS = ("modelopt", "compressed-tensors", "quark", "fp8", "auto-round", "inc", "hifp8", "x")
PLACES = (
    *forms._KEYS,
    "export",
    "export/kv_cache_group",
    "layer_quant_config",
    "layer_quant_config/*k_proj/output_tensors",
    "kv_cache_quant_config",
    "config_groups",
    "config_groups/group_0",
    "config_groups/group_0/targets",
    "attention_input_activations",
    "quantization",
    "quantization/kv_cache_quant_algo",
    "producer",
    "quant_library",
    "quant_method",
    "quant_algo",
)
MEANINGS = {
    *("none", "unreadable", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_affine", "mxfp8"),
    *(f"int{bits}" for bits in range(1, 9)),
}


def put(root: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        root = root.setdefault(key, {}) if isinstance(root.get(key, {}), dict) else {}
    root[last] = value


@given(st.sampled_from(PRODUCERS), st.dictionaries(st.sampled_from(PLACES), VALUES, max_size=6))
def test_whatever_stands_at_a_known_place_is_reported_and_never_raises(
    method: str, values: dict[str, Any]
) -> None:
    block: dict[str, Any] = {"quant_method": method}
    for path, value in values.items():
        put(block, path, value)
    for file, root in (
        ("config.json", {"quantization_config": block, "quantization": block, "architecture": "x"}),
        ("hf_quant_config.json", block),
        ("params.json", {"quantization": block}),
    ):
        documents = read({file: json.dumps(root)})
        found = find(documents)
        missing_required(documents)
        assert {one.meaning for one in found} <= MEANINGS
        pointers = [one.pointer for one in found]
        assert len(pointers) == len(set(pointers))
        for key in set(forms._KEYS) & set(block):
            prefix = {"config.json": "/quantization_config/", "hf_quant_config.json": "/"}
            assert f"{prefix.get(file, '/quantization/')}{key}" in pointers


@given(
    st.sampled_from(["config.json", "hf_quant_config.json", "quant_cfg.json", "params.json"]),
    VALUES,
)
def test_a_document_that_is_anything_at_all_never_raises(file: str, value: Any) -> None:
    documents = read({file: json.dumps(value)})
    assert find(documents) == ()
    assert missing_required(documents) == ()


KV_NAMES = st.builds("{}kv{}".format, st.text(max_size=6), st.text(max_size=6)).filter(
    lambda name: name not in forms._KEYS and not name.startswith("kv_cache_quant_config")
)


@given(st.dictionaries(KV_NAMES, VALUES | WORDS, min_size=1, max_size=4))
def test_other_keys_with_kv_in_them_state_nothing(noise: dict[str, Any]) -> None:
    layers = {f"model.layers.0.{name}.in_proj_qkv": {"quant_algo": "NVFP4"} for name in noise}
    layers["kv_cache_scheme"] = {"quant_algo": "FP8"}
    block = {
        **noise,
        "quant_method": "modelopt",
        "kv_cache_scheme": FP8,
        "quantized_layers": layers,
        "config_groups": {"group_0": {**noise, "targets": list(noise)}},
    }
    root = {**noise, "quantization_config": block, "vision_config": block, "text_config": noise}
    found = find(read({"config.json": json.dumps(root)}))
    assert [(one.pointer, one.value) for one in found] == [
        ("/quantization_config/kv_cache_scheme", FP8)
    ]


def test_every_scope_of_a_block_has_its_own_path() -> None:
    assert len(set(blocks.SCOPES)) == len(blocks.SCOPES)
