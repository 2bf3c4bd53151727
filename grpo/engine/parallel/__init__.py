"""One model in several processes (tensor parallel). What computes with a model knows nothing of it.

Read shard.py first: what the processes tell each other. shared_decoder.py lets a decoder compute with a part of the
weights, softmax.py normalises over a vocabulary of which each process has a part, and splits.py says which part of each
tensor a process holds.
"""
