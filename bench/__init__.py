"""Measure how fast the program is, compared with others and with what the machine could do at best.

Each file answers one question:

    decode         How close does a decode step come to what memory and arithmetic allow?
    whole_steps    How long does a GRPO step take, compared with TRL's GRPOTrainer, and what does a slow judge cost?
    sampler        How fast is generation, compared with transformers, and drawing, compared with torch.multinomial?
    logprob        How fast do hidden states become log-probs and gradients, compared with log_softmax and gather?
    train_step     How fast is a training pass, compared with transformers + PEFT?
    knowledge      How good and how fast is the knowledge base?
    real_model     Does a real model learn where its knowledge ends?
    searching      Does it learn to search for what it does not know?
    reasoning      What does KnowRL's reward do to a real model's reasoning, fact by fact?
    rejection      Does fine-tuning on the supported sentences do as well?
    services       Do rewards by rules agree with those by models, and how long does a step wait for a model?
    curves         Does it learn as with TRL?
    scale          What would a step cost on 1, 8 and 64 GPUs? Counted, not measured.

Read first what they share:

    record         options, and the rows of JSON that a benchmark leaves in results/
    timing         repeats by turns, ratios, profiles
    workload       prompts and the lengths of completions
    models         checkpoints with random weights
    peers          transformers' model and TRL's trainer, with our settings
    ceilings       what the hardware reaches at best
    ready          can this machine compile kernels?
    steps          a trainer that is ready for steps, and a judge that takes its time
    asking         how a model goes on after a start, and how probable an ending is
    chat_model     a chat endpoint on this machine that knows the truth, with a service's forms and troubles
    measures       measures with intervals, AUROC, and the risk at a coverage
    declining      ask a model which facts it declines
    arm            the answers of one model, and what is measured of them, fact by fact

Then sampler, the simplest comparison. report turns the rows of results/ into the table of README.md, and those of
gpu_checks.sh into a page that says what they mean; picture draws README's.

Run each benchmark as `python -m bench.NAME` with nothing else running. On a GPU, `bash bench/gpu_checks.sh` runs those
that concern it.
"""
