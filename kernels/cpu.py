"""Call cpu.c, which is compiled when it is first needed and kept in a cache: a decode step in float32 on a CPU.

oneDNN and torch are made for large products and large attention. With the few rows of a decode step, memory is what
counts: here the next weights are fetched while the last ones are used, and each sequence reads its own positions alone.
"""

import ctypes
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("cpu.c")
PANEL, LANES = 24, 8  # as in cpu.c: outputs of a panel; numbers of a register
# Not -ffast-math: it would change the order of sums.
COMPILE = ["-O3", "-mavx2", "-mfma", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-c"]
FUNCTIONS = {  # the arguments of each, before the number of threads: p a pointer, l a long, f a float
    "prepack": "ppll",
    "product": "pppplll",
    "decode_attention": "p" * 6 + "l" * 7,
    "decode_layers": "p" * 9 + "f" + "l" * 12,
}
TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_long, "f": ctypes.c_float}


@dataclass(frozen=True)
class Panels:
    """A weight [O, I] in the layout that `product` of these kernels reads. shape: O, I."""

    kernels: "CpuKernels"
    values: Tensor
    shape: torch.Size


class CpuKernels:
    """The functions of cpu.c, for contiguous float32 tensors, outside autograd.

    folder: where what was compiled is kept for other processes; None: nowhere. OSError or ValueError if there is no
    compiler, if it fails, or if its threads are not those of this torch.
    """

    def __init__(self, folder: Path | None):
        self.library = _load(folder)
        for name, arguments in FUNCTIONS.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = [*(TYPES[kind] for kind in arguments), ctypes.c_int], None

    def call(self, name: str, *arguments: Tensor | float | None) -> None:
        """Call a function of cpu.c with pointers to tensors, NULL for None, and as many threads as torch has."""
        values = [argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments]
        getattr(self.library, name)(*values, torch.get_num_threads())

    def prepack(self, weight_OI: Tensor) -> Panels:
        """Lay a weight out for `product`."""
        O, I = weight_OI.shape
        assert weight_OI.dtype == torch.float32
        source = weight_OI.contiguous()
        values = weight_OI.new_empty(-(-O // PANEL), I, PANEL)
        self.call("prepack", source, values, O, I)
        return Panels(self, values, weight_OI.shape)

    def product(self, x_TI: Tensor, weight: Panels, bias_O: Tensor | None = None) -> Tensor:
        """Return x Wᵀ + b [T, O]."""
        T, (O, I) = len(x_TI), weight.shape
        assert x_TI.shape == (T, I) and x_TI.dtype == torch.float32
        x_TI = x_TI.contiguous()
        y_TO = x_TI.new_empty(T, O)
        self.call("product", x_TI, weight.values, bias_O, y_TO, T, O, I)
        return y_TO

    def attends(self, head_dim: int) -> bool:
        """Return whether `decode_attention` can take heads of this width."""
        return head_dim % LANES == 0

    def decode_attention(self, q_BHE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, length_B: Tensor) -> Tensor:
        """Attend from one query per row to the first length_B[b] positions, at least one.

        Slow twin: kernels/twins.py `decode_attention`.
        """
        B, H, E = q_BHE.shape
        K, S = k_BKSE.shape[1:3]
        _check_cache(k_BKSE, v_BKSE, length_B)
        assert q_BHE.is_contiguous() and q_BHE.dtype == torch.float32 and self.attends(E)
        out_BHE = q_BHE.new_empty(B, H, E)
        score_BHS = q_BHE.new_empty(B, H, S)
        tensors = q_BHE, k_BKSE, v_BKSE, length_B, out_BHE, score_BHS
        steps = k_BKSE.stride(0), k_BKSE.stride(1), S
        self.call("decode_attention", *tensors, *steps, B, K, H // K, E)
        return out_BHE

    def decode_layers(
        self,
        table_LX: Tensor,
        x_BD: Tensor,
        cos_B1E: Tensor,
        sin_B1E: Tensor,
        position_B: Tensor,
        kv_L2BKSE: Tensor,
        eps: float,
        mlp_width: int,
        num_heads: int,
    ) -> tuple[Tensor, Tensor]:
        """Compute all layers for one new token of each sequence; return the two parts of the stream, x and added.

        table_LX: addresses of a layer's weights, in the order of `struct layer` in cpu.c. kv_L2BKSE: the cache of at
        least B slots; it takes the new keys and values. Slow twin: the model itself, in float64.
        """
        B, D = x_BD.shape
        F = mlp_width
        H = num_heads
        L, _, _, K, S, E = kv_L2BKSE.shape
        _check_cache(kv_L2BKSE[0, 0], kv_L2BKSE[0, 1], position_B)
        assert x_BD.is_contiguous() and x_BD.dtype == torch.float32 and self.attends(E)
        assert table_LX.dtype == torch.int64 and table_LX.shape == (L, 12)
        assert kv_L2BKSE.shape[2] >= B and len(position_B) == B and H % K == 0
        assert cos_B1E.is_contiguous() and sin_B1E.is_contiguous()
        assert cos_B1E.shape == (B, 1, E)
        added_BD = torch.zeros_like(x_BD)
        width = max((H + 2 * K) * E, 2 * F)
        scratch = x_BD.new_empty(B * (D + width + F + 2 * H * E + H * S))
        length_B = position_B + 1
        tensors = table_LX, x_BD, added_BD, cos_B1E, sin_B1E, position_B, length_B, kv_L2BKSE, scratch
        steps = kv_L2BKSE.stride()[:4]
        self.call("decode_layers", *tensors, eps, L, *steps, S, B, D, F, H, K, E)
        return x_BD, added_BD


def _check_cache(k_BKSE: Tensor, v_BKSE: Tensor, place_B: Tensor) -> None:
    assert k_BKSE.dtype == v_BKSE.dtype == torch.float32 and place_B.dtype == torch.int64
    assert k_BKSE.stride() == v_BKSE.stride() and k_BKSE.stride()[2:] == (k_BKSE.shape[3], 1)
    assert place_B.is_contiguous()


def _load(folder: Path | None) -> ctypes.CDLL:
    """Load the library from the folder, or compile it and keep it there if that is possible."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    key = _digest(SOURCE.read_bytes() + " ".join([*compiler, *COMPILE]).encode())
    # A name ends in the digest of its file: what a full disk or a power cut left behind must not be loaded.
    for kept in folder.glob(f"cpu-{key}-*.so") if folder and _is_mine(folder) else ():
        with suppress(OSError):
            if _is_mine(kept) and kept.stem == f"cpu-{key}-{_digest(kept.read_bytes())}":
                return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory() as scratch:
        path = _compile(compiler, Path(scratch))
        if folder:
            with suppress(OSError):
                path = _keep(path, folder / f"cpu-{key}-{_digest(path.read_bytes())}.so")
        return ctypes.CDLL(str(path))  # what it needs is looked for here, not at a call


def _compile(compiler: list[str], scratch: Path) -> Path:
    """Compile cpu.c in a folder. It is linked apart, because gcc would add its own library of threads."""
    object_file, made = scratch / "cpu.o", scratch / "cpu.so"
    for options in ([*COMPILE, "-o", object_file, SOURCE], ["-shared", "-o", made, object_file]):
        command = [*compiler, *options]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60)
        except subprocess.SubprocessError as error:
            raise OSError(str(error)) from error
    return made


def _keep(made: Path, target: Path) -> Path:
    """Copy a file to its place in one step: another process may do the same now."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        copy = shutil.copy(made, scratch)
        os.chmod(copy, 0o700)  # whatever the umask
        os.replace(copy, target)
    return target


def _is_mine(path: Path) -> bool:
    """Return whether a file or folder is this user's, and nobody else may write it: what is loaded runs."""
    if not (path.is_file() or path.is_dir()):  # reading a pipe would never end
        return False
    found = path.stat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & others)  # not on Windows


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
