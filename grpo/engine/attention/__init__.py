"""Which token attends to which. The decoder calls `attend` without knowing which of these implementations it is.

packed.py: inside a micro-batch, prompts shared by their completions; dense.py and flash.py compute the same faster for
bfloat16 on a CPU and on a GPU. decode.py: one new token per sequence, over the cache. special.py: windows,
caps and sinks, of models of transformers. choice.py chooses by a self-test.
This folder may import device/.
"""
