"""GRPO from scratch in PyTorch. Read in the order in which a training step runs:

train.py        the step on one screen: sample, score, pack, update
schema.py       the shape legend; Prompt, Completion, Group, PackedBatch with worked examples
sampler.py      completions with the log-probs they were drawn with      (cache.py, draw.py)
advantages.py   what a reward is worth within its group                  (rewards/ beside this folder)
packing.py      groups to one row of tokens, weights filled once
logprobs.py     hidden states to log-probs, never tokens x vocabulary    (kernels/ beside this folder)
loss.py         the clipped objective and its relatives                  (MATH.md has the equations)
model.py        the decoder                                              (rope.py, attention.py, lora.py)
weights.py      Hugging Face checkpoints in and out                      (adapter.py: PEFT's format)
optim.py, checkpoint.py, run_dir.py, log.py, config.py, data.py          what surrounds it
"""

from pathlib import Path

__version__ = "0.1.0"

# kernels/ bears the name of a library that transformers probes for, so it has no __init__.py and is imported as
# grpo.kernels. A wheel holds it inside grpo/; in a checkout it lies beside grpo/, and this line finds it there.
if not (Path(__file__).parent / "kernels").is_dir():
    __path__.append(str(Path(__file__).parent.parent))
