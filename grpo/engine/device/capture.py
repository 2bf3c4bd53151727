"""Record work on a GPU as CUDA graphs."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from grpo.base.errors import INTERNAL, MEMORY, UserError, is_out_of_memory, reason

WARM_UPS = 2  # runs before a capture, which create handles and compile kernels


class CudaCapture:
    """Turns functions into CUDA graphs.

    They share one pool of memory, since they never run at the same time, and one stream, for which cuBLAS keeps one
    workspace. Other threads (an entailment model, for example) may use the GPU during a capture.
    """

    def __init__(self):
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self, step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Run `step` WARM_UPS times, then record it (which does not run it), and return the graph.

        UserError (exit 1 or 8) if it cannot be recorded: the process cannot use the GPU after that.
        """
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UPS):
                step()
        current.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                step()
        except Exception as error:
            raise _failed(error) from error
        return graph


def _failed(error: Exception) -> UserError:
    """Explain a failed capture. After one, the allocator is damaged, so nothing in this process may try on."""
    what, why = "a CUDA graph could not be recorded", reason(error)
    if is_out_of_memory(error):
        return UserError(what, why, "lower max_num_seqs, max_completion_length or max_prompt_length", MEMORY)
    return UserError(what, why, "set kernels=none", INTERNAL)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise RuntimeError if the host would wait for the GPU inside the `with` block: such work cannot be captured.

    In torch 2.11, an attempt to capture it damages the allocator for the rest of the process. The setting holds for all
    threads, so use this before others are at work.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
