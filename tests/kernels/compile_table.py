"""python -m tests.kernels.compile_table FOLDER...

Compile every kernel for sm_80 and sm_90 under several versions of Triton, and write their registers and spills into
kernels/README.md. Each FOLDER holds one version: pip install --no-deps --target FOLDER triton==3.6.0
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.record import markdown_table
from bench.report import replace_block

ROOT = Path(__file__).resolve().parents[2]


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


def name_of(kernel: dict) -> str:
    """Return the name of a kernel's line."""
    exact = kernel["kernel"].endswith("_stretches") and not kernel["mma"]
    return kernel["kernel"] + (", float32" if exact else "")


def table(found: dict[str, list[dict]]) -> str:
    """Make the table: a line per kernel, a column per version."""
    lines = []
    for name in sorted({name_of(kernel) for kernels in found.values() for kernel in kernels}):
        own = [[kernel for kernel in kernels if name_of(kernel) == name] for kernels in found.values()]
        lines.append([name, *(cell(kernels) if kernels else "" for kernels in own)])
    return markdown_table(["registers, sm_80 / sm_90", *found], lines)


def main() -> None:
    folders = list(map(Path, sys.argv[1:]))
    if not folders or not all((folder / "triton").is_dir() for folder in folders):
        sys.exit(__doc__)  # the table stays as it is
    found = dict(sorted(map(compiled, folders)))
    replace_block(ROOT / "kernels" / "README.md", "compiled", table(found))


if __name__ == "__main__":
    main()
