"""The textbook: GRPO as this project computes it. Read it with MATH.md, in this order.

step.py          the step, from top to bottom, and what stage 1 shares with it
schema.py        the data that flows through a step, with worked examples, and the legend of tensor shapes
interfaces.py    what a step is given: settings, peers, a model, a sampler, a scorer
rollout.py       prompts to groups of completions, being graded
advantages.py    rewards to advantages
logprobs.py      micro-batches to log-probs, never tokens x vocabulary at once
loss.py          the clipped objective with its KL penalty
loss_weights.py  how much each token counts, and which have a gradient
packing.py       groups to micro-batches
optimizer.py     AdamW on one flat buffer
meter.py         means over the tokens of a step, for the metrics
variants.py      what the plain algorithm does without, one block each; credit.py finds what a reward is about
"""
