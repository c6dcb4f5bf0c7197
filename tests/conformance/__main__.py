"""All that the engines' own code answered, against our answers, as a table.

``cd tests && python -m conformance``. Exit code 1: something differs, or a file is not compared.
Without the folder ``shared/oracle`` beside the repository there is nothing to compare.
"""
# ruff: noqa: T201 - a program that prints

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from conformance import sglang_rows, vllm_rows
from conformance.comparing import ORACLE, comparisons

if TYPE_CHECKING:
    from conformance.comparing import Comparison


def main() -> int:
    """Print the table; what differs goes last."""
    if not ORACLE.is_dir():
        print("shared/oracle is not here: nothing to compare")
        return 0
    print("| engine | release | rows of | cells | agreeing | percent | ignored | seconds |")
    print("| --- | --- | --- | --: | --: | --: | --: | --: |")
    done: list[Comparison] = []
    for module in (vllm_rows, sglang_rows):
        for result in comparisons(module.ENGINE, module.KINDS):
            print(_line(result.engine, result.release, result.kind, [result]), flush=True)
            done.append(result)
    print(_line("all", "", "", done))
    problems = [text for result in done for text in result.differences]
    problems += [f"{result.file} has no rows" for result in done if not result.cells]
    unread = set(ORACLE.glob("*/*.gz")) - {result.file for result in done}
    problems += [f"{file} is not compared" for file in sorted(unread)]
    for problem in problems:
        print(problem)
    return bool(problems)


def _line(engine: str, release: str, kind: str, results: list[Comparison]) -> str:
    cells, agreeing = sum(each.cells for each in results), sum(each.agreeing for each in results)
    ignored, seconds = sum(each.ignored for each in results), sum(each.seconds for each in results)
    percent = 100 * agreeing / cells if cells else 0.0
    return (
        f"| {engine} | {release} | {kind} | {cells} | {agreeing} | {percent:.2f} | {ignored} "
        f"| {seconds:.1f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
