"""Settings and fixtures for all tests; see making.py for what they are made of."""

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run in Triton's interpreter where there is no GPU

import pytest
import torch
from making import write_chat_checkpoint, write_checkpoint

torch.set_num_threads(1)  # the models of these tests are too small for more, and two threads suffer from any neighbour


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A Qwen2 checkpoint, without tokenizer."""
    return write_checkpoint(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def chat_checkpoint(tmp_path_factory) -> Path:
    return write_chat_checkpoint(tmp_path_factory.mktemp("chat"))
