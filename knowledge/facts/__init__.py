"""Find the facts of a text, and what the passages of a knowledge base say of them.

It imports store/ and the other files of this package; entailment.py also imports torch and `grpo.data.hub`. Read it
in this order:

    claims.py            the atomic facts of a text, which of them count, and the verdicts on them
    model_decomposer.py  a text to its facts by a language model
    replies.py           ask a language model, and read its list of facts in all usual forms
    entailment.py        a verifier with an entailment model
    matcher.py           both without a model: whole sentences, for toy worlds
"""
