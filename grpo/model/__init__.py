"""The policy's network, in and out of Hugging Face's formats.

Read decoder.py first (Qwen2, Qwen3, Llama), then lora.py (adapters inside one product, Eq. 12), master_weight.py and
rope.py. weights.py reads and writes checkpoints, adapter.py PEFT's adapters; policy.py assembles all that a run starts
from. memory.py counts what a training step keeps. This folder may import device/ and data/.
"""
