"""How fast, against whom, and against what the machine could do at best: one question per file.

    decode       a decode step against what memory and arithmetic allow
    whole_steps  GRPO steps at the shapes of KnowRL and of mathematics, with a judge that takes its time
    sampler      generation against transformers' generate, and the sampling operation against torch.multinomial
    logprob      linear layer to log-probs, forward and backward, against log_softmax and gather
    train_step   one training pass against transformers + PEFT
    end_to_end   a whole GRPO step against TRL's GRPOTrainer
    rewards      a step with a judge that takes seconds per completion
    growth       how cost grows with batch, length, group and model
    knowledge    building and searching the knowledge base

Read timing.py (repeats, statistics, the JSON line), ceilings.py (what the hardware reaches) and models.py first;
report.py turns the rows of results/ into the README's table. Run each as `python -m bench.NAME` with nothing else
running; on a GPU `bash bench/gpu_checks.sh` runs what concerns it.
"""
