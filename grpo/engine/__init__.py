"""How the algorithm is computed: the network, attention, generation, and the device that all of them run on.

model/      the decoder of Qwen and Llama, LoRA, checkpoints in and out, the memory that a step needs
sampling/   batched generation over a key-value cache
attention/  attention inside a micro-batch, and of one new token per sequence
device/     the choice between fused kernels and torch's operations; several processes
parallel/   one model in several processes
"""
