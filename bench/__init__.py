"""Measure how fast the program is, compared with others and with what the machine could do at best.

Each file answers one question:

    decode         How close does a decode step come to what memory and arithmetic allow?
    whole_steps    How long does a GRPO step take, compared with TRL's GRPOTrainer, and what does a slow judge cost?
    sampler        How fast is generation, compared with transformers, and drawing, compared with torch.multinomial?
    logprob        How fast do hidden states become log-probs and gradients, compared with log_softmax and gather?
    train_step     How fast is a training pass, compared with transformers + PEFT?
    knowledge      How good and how fast is the knowledge base?
    study          What has training changed? Read from the files of finished runs

Read first what they share:

    record         options, and the rows of JSON that a benchmark leaves in results/
    timing         repeats by turns, ratios, profiles
    workload       prompts and the lengths of completions
    models         checkpoints with random weights
    peers          transformers' model, CTranslate2's generator and TRL's trainer, with our settings
    llama_cpp      llama.cpp, with a checkpoint as a GGUF file
    ceilings       what the hardware reaches at best
    steps          a trainer that is ready for steps, and a judge that takes its time

Then sampler, the simplest comparison. report turns the rows of results/, or of gpu_checks.sh, into the table of
README.md.

Run each benchmark as `python -m bench.NAME` with nothing else running. On a GPU, `bash bench/gpu_checks.sh` runs those
that concern it.
"""
