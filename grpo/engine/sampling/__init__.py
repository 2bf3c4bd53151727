"""Generation: prompts to completions, with the log-probs of the distribution that was really sampled from.

Read sampler.py first (admit, decode, collect), then decode_step.py (one token for every live sequence).
engine/device/draw.py draws a token from logits. cache.py holds keys and values; cuda_graph.py replays decode steps on a
GPU. check.py compares a model of transformers with transformers itself. This folder may import device/, attention/ and
model/.
"""
