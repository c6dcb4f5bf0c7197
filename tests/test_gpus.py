"""GPU names and the detection of the GPUs of this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher.errors import UsageError
from patcher.gpus import detect, find, gpus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    FakeTool = Callable[[str, str], None]

NAMES = {
    "sm75": "7.5",
    "sm80": "8.0",
    "sm86": "8.6",
    "sm89": "8.9",
    "sm90": "9.0",
    "sm100": "10.0",
    "sm103": "10.3",
    "sm110": "11.0",
    "sm120": "12.0",
    "sm121": "12.1",
    "gfx90a": None,
    "gfx942": None,
    "gfx950": None,
    "gfx1100": None,
    "gfx1151": None,
    "xpu": None,
    "cpu": None,
}

SPELLINGS = {
    "sm120": "sm120",
    "SM120": "sm120",
    "sm_120": "sm120",
    "sm-120": "sm120",
    "sm 120": "sm120",
    "sm120a": "sm120",
    "sm_100f": "sm100",
    "sm90a": "sm90",
    " 12.0 ": "sm120",
    "12.0a": "sm120",
    "11.0": "sm110",
    "12.1": "sm121",
    "7.5": "sm75",
    "rtx-pro-6000": "sm120",
    "RTX PRO 6000": "sm120",
    "rtxpro6000": "sm120",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "sm120",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "sm120",
    "NVIDIA GeForce RTX 5090": "sm120",
    "rtx5070": "sm120",
    "b200": "sm100",
    "GB200": "sm100",
    "b300": "sm103",
    "gb300": "sm103",
    "jetson-thor": "sm110",
    "NVIDIA Jetson AGX Thor Developer Kit": "sm110",
    "gb10": "sm121",
    "NVIDIA GB10": "sm121",
    "DGX Spark": "sm121",
    "NVIDIA H100 80GB HBM3": "sm90",
    "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb": "sm90",
    "h200": "sm90",
    "h800": "sm90",
    "NVIDIA H20": "sm90",
    "NVIDIA GH200 480GB": "sm90",
    "l40s": "sm89",
    "NVIDIA L4": "sm89",
    "rtx-4090": "sm89",
    "NVIDIA RTX 6000 Ada Generation": "sm89",
    "NVIDIA RTX 4000 SFF Ada Generation": "sm89",
    "NVIDIA A100-SXM4-80GB": "sm80",
    "a800": "sm80",
    "a30": "sm80",
    "NVIDIA A10": "sm86",
    "NVIDIA A10G": "sm86",
    "NVIDIA RTX A6000": "sm86",
    "rtx-3090": "sm86",
    "Tesla T4": "sm75",
    "rtx-2080-ti": "sm75",
    "Quadro RTX 6000": "sm75",
    "mi250": "gfx90a",
    "AMD Instinct MI300X": "gfx942",
    "gfx942": "gfx942",
    "gfx942:sramecc+:xnack-": "gfx942",
    "GFX90A": "gfx90a",
    "mi355x": "gfx950",
    "AMD Radeon RX 7900 XTX": "gfx1100",
    "strix-halo": "gfx1151",
    "AMD Ryzen AI Max+ 395": "gfx1151",
    "XPU": "xpu",
    "cpu": "cpu",
}


def test_the_known_gpus() -> None:
    assert {gpu.name: gpu.capability for gpu in gpus()} == NAMES
    assert [gpu.name for gpu in gpus()] == list(NAMES)


def test_capabilities_belong_to_nvidia_and_match_the_names() -> None:
    for gpu in gpus():
        assert (gpu.capability is not None) == (gpu.vendor == "nvidia")
        if gpu.capability is not None:
            assert gpu.name == "sm" + gpu.capability.replace(".", "")


def test_data_is_one_gpu_a_line_for_readable_diffs() -> None:
    from patcher import gpus as module

    with open(module._DATA, encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert len(lines) == len(NAMES) + 2
    assert [line.split('"')[3] for line in lines[1:-1]] == list(NAMES)


def test_summaries_say_what_people_buy() -> None:
    assert find("sm120").summary == "RTX PRO 6000 / RTX 50xx"
    assert all(gpu.summary for gpu in gpus())


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings(text: str) -> None:
    assert find(text).name == SPELLINGS[text]


def test_every_product_leads_to_its_gpu_or_is_called_ambiguous() -> None:
    owners: dict[str, set[str]] = {}
    for gpu in gpus():
        assert len(set(gpu.products)) == len(gpu.products)
        for product in gpu.products:
            owners.setdefault(product, set()).add(gpu.name)
    for product, names in owners.items():
        if names == {"sm75", "sm89"}:  # Quadro RTX n000 and RTX n000 Ada
            with pytest.raises(UsageError, match=f"'{product}' is ambiguous: sm75 .* or sm89 "):
                find(product)
        else:
            assert {find(product).name} == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sm12", "unknown GPU 'sm12'; did you mean sm121 or sm120 or sm110?"),
        ("120", "unknown GPU '120'; did you mean sm120 or "),
        ("rtx-pro-600", "unknown GPU 'rtx-pro-600'; did you mean rtx-pro-6000 or"),
        ("5090", "unknown GPU '5090'; did you mean rtx-5090"),
        ("gfx1101", "unknown GPU 'gfx1101'; did you mean gfx1151 or gfx1100"),
        ("8.7", "unknown GPU '8.7'"),
        ("", "unknown GPU ''"),
        ("1.20", "unknown GPU '1.20'"),
        ("\u0661\u0662.\u0660", "unknown GPU"),
        ("\x1b[31m", r"unknown GPU '\x1b[31m'"),
    ],
)
def test_unknown_names_get_close_matches(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        find(text)
    assert caught.value.message.startswith(message)
    assert caught.value.hint == "ckpt-patch targets"


def test_an_unknown_capability_is_not_rounded_to_a_neighbour() -> None:
    with pytest.raises(UsageError) as caught:
        find("8.7")
    assert caught.value.message == "unknown GPU '8.7'"


def test_two_gpus_in_one_text_are_ambiguous() -> None:
    with pytest.raises(UsageError, match=r"^'h100 sm120' is ambiguous: sm90 \(.*\) or sm120 \("):
        find("h100 sm120")


def test_names_are_names_not_numbers() -> None:
    assert find("gfx1100").capability is None
    assert find("11.0").name == "sm110"
    assert find("sm120") != find("sm100")
    with pytest.raises(UsageError):
        find("1100")


def test_long_garbage_is_quoted_shortly() -> None:
    with pytest.raises(UsageError) as caught:
        find("x" * 100_000)
    assert len(caught.value.message) < 120


@given(st.text())
def test_any_text_is_a_gpu_or_a_usage_error(text: str) -> None:
    try:
        found = find(text)
    except UsageError as error:
        assert error.message.startswith(("unknown GPU ", "'", '"'))  # noqa: PT017
    else:
        assert found in gpus()


@given(st.sampled_from(list(NAMES)), st.sampled_from(["", "-", "_", " "]), st.booleans())
def test_separators_and_case_do_not_matter(name: str, separator: str, upper: bool) -> None:  # noqa: FBT001
    spelled = name.replace("sm", "sm" + separator)
    assert find(spelled.upper() if upper else spelled).name == name


@pytest.fixture
def fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTool:
    """Put a shell script of that name on an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def detected() -> list[str]:
    """With a time limit that a busy test machine keeps."""
    return [gpu.name for gpu in detect(timeout=30)]


def refusal(timeout: float = 30) -> UsageError:
    with pytest.raises(UsageError) as caught:
        detect(timeout)
    assert caught.value.hint == (
        "name the GPU, for example --target sm120; all names: ckpt-patch targets"
    )
    return caught.value


def test_nvidia_smi_is_asked_for_capabilities(fake_tool: FakeTool) -> None:
    fake_tool(
        "nvidia-smi",
        'test "$*" = "--query-gpu=compute_cap,name --format=csv,noheader" || exit 6\n'
        'echo "12.0, NVIDIA RTX PRO 6000 Blackwell Server Edition"',
    )
    assert detected() == ["sm120"]


def test_each_kind_of_gpu_once_in_order(fake_tool: FakeTool) -> None:
    fake_tool(
        "nvidia-smi",
        'echo "9.0, NVIDIA H200"; echo "8.9, NVIDIA L4"; echo "9.0, NVIDIA H200"',
    )
    assert detected() == ["sm90", "sm89"]


def test_mig_lines_and_noise_are_passed_over(fake_tool: FakeTool) -> None:
    fake_tool(
        "nvidia-smi",
        "echo 'Warning: persistence mode is off, see the manual'\n"
        "echo '8.0, NVIDIA A100-SXM4-80GB'\n"
        "echo '  MIG 1g.10gb     Device  0: (UUID: MIG-0f5c, 1)'\n"
        "echo ''",
    )
    assert detected() == ["sm80"]


def test_the_product_name_stands_in_for_a_capability_not_told(fake_tool: FakeTool) -> None:
    fake_tool("nvidia-smi", "echo '[N/A], NVIDIA H100 PCIe'; echo 'N/A, NVIDIA L40S'")
    assert detected() == ["sm90", "sm89"]


def test_windows_line_ends(fake_tool: FakeTool) -> None:
    fake_tool("nvidia-smi", r"printf '12.1, NVIDIA GB10\r\n'")
    assert detected() == ["sm121"]


@pytest.mark.parametrize(
    ("line", "named"),
    [("8.7, Orin (nvgpu)", "'8.7'"), ("[N/A], NVIDIA Graphics Device", "'NVIDIA Graphics Device'")],
)
def test_an_unknown_gpu_is_named_even_beside_a_known_one(
    fake_tool: FakeTool, line: str, named: str
) -> None:
    fake_tool("nvidia-smi", f"echo '9.0, NVIDIA H100'; echo '{line}'")
    assert refusal().message == (
        f"nvidia-smi reports {named}, a GPU that ckpt-patch has no data for"
    )


def test_no_tool_at_all(fake_tool: FakeTool) -> None:
    del fake_tool  # only for its empty PATH
    assert refusal().message == (
        "no GPU was detected: nvidia-smi is not on PATH; rocminfo is not on PATH"
    )


def test_a_failing_tool_says_why(fake_tool: FakeTool) -> None:
    fake_tool("nvidia-smi", "echo 'NVIDIA-SMI has failed: no driver.'; echo more; exit 9")
    assert refusal().message == (
        "no GPU was detected: nvidia-smi failed with status 9: 'NVIDIA-SMI has failed: no driver.';"
        " rocminfo is not on PATH"
    )


@pytest.mark.parametrize("script", ["", r"printf '\377\376\000garbage,,\n12.0'", "echo No devices"])
def test_output_without_a_gpu(fake_tool: FakeTool, script: str) -> None:
    fake_tool("nvidia-smi", script)
    assert "nvidia-smi lists no GPU" in refusal().message


def test_a_file_that_is_no_program(fake_tool: FakeTool, tmp_path: Path) -> None:
    fake_tool("rocminfo", "")
    (tmp_path / "rocminfo").write_bytes(b"\x7fELF")
    assert "rocminfo cannot be started: " in refusal().message


def test_a_hanging_tool_is_left_after_the_time_limit(fake_tool: FakeTool, tmp_path: Path) -> None:
    late = tmp_path / "late"
    fake_tool("nvidia-smi", f"( /bin/sleep 2; : > {late} ) &\n/bin/sleep 60 &\nwait")
    before = time.monotonic()
    message = refusal(timeout=0.2).message
    assert time.monotonic() - before < 50  # it would take 60 seconds
    assert "nvidia-smi gave no answer within 200 ms" in message
    time.sleep(2.2)
    assert not late.exists(), "a child of the tool is still running"


def test_an_interrupt_ends_the_tool(
    fake_tool: FakeTool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(process: subprocess.Popen[bytes], **_: float) -> None:
        started.append(process)
        raise KeyboardInterrupt

    fake_tool("nvidia-smi", "/bin/sleep 60")
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        detect()
    assert started[0].args == [
        str(tmp_path / "nvidia-smi"),
        "--query-gpu=compute_cap,name",
        "--format=csv,noheader",
    ]
    assert started[0].wait(timeout=30) == -signal.SIGKILL


def test_a_hanging_tool_does_not_hide_what_the_other_one_finds(fake_tool: FakeTool) -> None:
    fake_tool("nvidia-smi", "/bin/sleep 60")
    fake_tool("rocminfo", "echo '  Name:                    gfx950'")
    assert [gpu.name for gpu in detect(timeout=1)] == ["gfx950"]


ROCMINFO = """\
ROCk module is loaded
Agent 1
  Name:                    AMD EPYC 9654 96-Core Processor
  Marketing Name:          AMD EPYC 9654 96-Core Processor
Agent 2
  Name:                    gfx942
  Uuid:                    GPU-4aaa
  Marketing Name:          AMD Instinct MI300X
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-
    ISA 2
      Name:                    amdgcn-amd-amdhsa--gfx9-4-generic:sramecc+:xnack-
Agent 3
  Name:                    gfx942
"""


def test_rocminfo(fake_tool: FakeTool) -> None:
    fake_tool("rocminfo", f"printf %s '{ROCMINFO}'")
    assert detected() == ["gfx942"]


def test_rocminfo_with_a_gpu_without_data(fake_tool: FakeTool) -> None:
    fake_tool("rocminfo", "echo '  Name:   gfx1036'")
    assert refusal().message == "rocminfo reports 'gfx1036', a GPU that ckpt-patch has no data for"


def test_both_vendors(fake_tool: FakeTool) -> None:
    fake_tool("nvidia-smi", "echo '8.6, NVIDIA A40'")
    fake_tool("rocminfo", "echo '  Name:   gfx90a'")
    assert detected() == ["sm86", "gfx90a"]


def test_finding_a_gpu_starts_no_heavy_import() -> None:
    code = (
        "import sys; from patcher.gpus import find; find('rtx-pro-6000');"
        "print(*sorted({'subprocess', 'difflib', 'shutil', 'tomllib'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
