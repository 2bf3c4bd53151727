"""Measure how fast the program is, compared with others and with what the machine could do at best.

Each file answers one question:

    decode         How close does a decode step come to what memory and arithmetic allow?
    products       How fast is each of its matrix products, by the number of rows?
    whole_steps    How long does a GRPO step take, and what does a judge cost that takes seconds per completion?
    sampler        How fast is generation, compared with transformers, and drawing, compared with torch.multinomial?
    logprob        How fast do hidden states become log-probs and gradients, compared with log_softmax and gather?
    train_step     How fast is a training pass, compared with transformers + PEFT?
    end_to_end     How fast is a complete GRPO step, compared with TRL's GRPOTrainer?
    growth         How does cost grow with batch, length, group and model?
    knowledge      How good and how fast is the knowledge base?
    abstention_lab Which rewards teach a small model when to answer, and when does checking its facts help?
    verifier       What does the verifier of mathematics pay and miss? (its rules: rules.py)

Read these first: timing.py (options, repeats, comparisons, the JSON line), workload.py (prompts and lengths),
ceilings.py (what the hardware reaches), models.py (checkpoints), steps.py (a trainer and a judge). report.py turns
the rows of results/ into the README's table, lab_results.py those of the lab into its own. Run each benchmark as
`python -m bench.NAME` with nothing else running; on a GPU, `bash bench/gpu_checks.sh` runs those that concern it.
"""
