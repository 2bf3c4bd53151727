"""The facts of a text, and what the passages of a knowledge base say of them.

It imports store/ and the files beside it in this package; entailment.py also imports torch and `grpo.data.hub`. Read it
in this order:

    claims.py         a text to atomic facts, by a language model or by rules
    replies.py        what a language model replies: its list of facts, in all usual forms
    clauses.py        the rules for one sentence: clauses with their subjects named
    forms.py          dates, numbers and "&" in one form
    verdict.py        supported, refuted or unknown: the interface of a verifier, and a cache for verdicts
    entailment.py     a verifier with an entailment model
    statement.py      a clause as words that can be compared
    lexical.py        a verifier without a model
"""
