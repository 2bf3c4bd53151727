"""The textbook: GRPO as this project computes it. Read it with MATH.md, in this order.

schema.py      the data that flows through a step, with worked examples, and the legend of tensor shapes
rollout.py     prompts to groups of completions, and their rewards to advantages
advantages.py  rewards to advantages
credit.py      which tokens of a completion a reward is about
packing.py     groups to micro-batches, and the weight of each token in the loss
logprobs.py    micro-batches to log-probs, never tokens x vocabulary at once
loss.py        the clipped objective and its relatives
optimizer.py   AdamW on one flat buffer
"""
