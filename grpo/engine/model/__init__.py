"""The policy's network, in and out of Hugging Face's formats.

Read decoder.py first (Qwen2, Qwen3, Llama, Mistral), then residual.py, lora.py (adapters inside one product, Eq. 15),
joint_linear.py (several projections of one input), build.py, master_weight.py, int8_weight.py (frozen weights in 8
bits) and rope.py. sampling_forms.py has the forms that layers take while sampling, model_config.py the shapes of
checkpoints. weights.py reads and writes checkpoints, adapter.py PEFT's adapters, and gguf.py reads GGUF files.
slices.py says which part of each tensor a shard holds. memory.py counts what a training step keeps, and memory_limit.py
does a step again with smaller micro-batches. flat.py lays trained parameters out. This folder may import device/ and
attention/, and the keys of config/.
"""
