"""The policy's network, in and out of Hugging Face's formats.

Read decoder.py first (Qwen2, Qwen3, Llama, Mistral), then lora.py (linear layers, with adapters inside one product, Eq.
15), weight.py (float32 masters, and frozen weights in few bits), build.py (how modules are built) and rope.py.
model_config.py has the shapes of checkpoints. transformers_model.py runs all other families by transformers' modules.
weights.py reads and writes checkpoints, adapter.py PEFT's adapters, both by tensor_files.py; gguf.py and
bitsandbytes.py read files of few bits.
memory.py counts what a training step keeps, and does it again with smaller micro-batches if that was too much. flat.py
lays trained parameters out. This folder may import device/, parallel/ and attention/.
"""
