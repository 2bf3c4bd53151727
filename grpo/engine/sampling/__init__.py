"""Generation: prompts to completions, with the log-probs of the distribution that was really sampled from.

Read sampler.py first (schedule, run, collect), then prefill.py (prompts) and decode_step.py (the cache, and one token
for every live sequence, on a GPU as a graph; on a CPU in C by layers_in_c.py). engine/device/draw.py draws a token from
logits. check.py compares a model of transformers with transformers itself. This folder may import device/, attention/
and model/.
"""
