"""python -m bench.ready

Can this machine compile the kernels of Triton? It needs a C compiler and Python.h for the first one. Without them
everything runs with torch's own operations, and rows of speed mislead. Exit status: 0, or 1 if something is missing.
"""

import os
import shutil
import sysconfig
from pathlib import Path

from bench.record import plain_parser
from grpo.engine.device.kernel_choice import describe


def find_compiler() -> str | None:
    """Return the C compiler that Triton takes; None if there is none."""
    for name in (os.environ.get("CC"), "gcc", "clang"):
        path = name and shutil.which(name)
        if path:
            return path
    return None


def main() -> int:
    compiler = find_compiler()
    header = Path(sysconfig.get_path("include")) / "Python.h"
    operations = describe("cuda")
    print(f"C compiler  {compiler or 'missing: install gcc'}")
    print(f"Python.h    {header if header.exists() else 'missing: install python3-dev'}")
    print(f"kernels     {operations}")
    is_ready = bool(compiler) and header.exists() and operations.startswith("fused kernels")
    return int(not is_ready)


if __name__ == "__main__":
    plain_parser("bench.ready", __doc__).parse_args()
    raise SystemExit(main())
