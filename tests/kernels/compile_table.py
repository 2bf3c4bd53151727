"""python -m tests.kernels.compile_table FOLDER...

Compile every kernel for sm_80 and sm_90 under several versions of Triton, and write their registers and spills into
kernels/README.md. Each FOLDER holds one version: pip install --no-deps --target FOLDER triton==3.6.0
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "kernels" / "README.md"
BEGIN, END = "<!-- compiled -->", "<!-- /compiled -->"


def compiled(folder: Path) -> tuple[str, list[dict]]:
    """Return the version of Triton in that folder, and what it makes of every kernel (offline.py)."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": f"{folder.resolve()}{os.pathsep}{ROOT}"}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

    version = run("-c", "import triton; print(triton.__version__)").strip()
    return version, json.loads(run(str(Path(__file__).with_name("offline.py"))))


def cell(kernels: list[dict]) -> str:
    """Show the most registers of a kernel on both targets, and the spilled instructions if there are any."""
    shown = []
    for capability in (80, 90):
        own = [kernel for kernel in kernels if kernel["capability"] == capability]
        spills = max(kernel["spills"] for kernel in own)
        shown.append(str(max(kernel["REG"] for kernel in own)) + (f" (**{spills} spilled**)" if spills else ""))
    return " / ".join(shown)


def table(found: dict[str, list[dict]]) -> str:
    """Make the table: a line per kernel, a column per version."""
    by_kernel: dict[str, dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for version, kernels in found.items():
        for kernel in kernels:
            name = kernel["kernel"] + (
                ", float32" if kernel["kernel"].endswith("_stretches") and not kernel["mma"] else ""
            )
            by_kernel[name][version].append(kernel)
    lines = [f"| registers, sm_80 / sm_90 | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for name in sorted(by_kernel):
        lines.append(f"| {name} | {' | '.join(cell(by_kernel[name][version]) for version in found)} |")
    return "\n".join(lines)


def main() -> None:
    found = dict(sorted(map(compiled, map(Path, sys.argv[1:]))))
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
