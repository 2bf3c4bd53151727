"""What computes on this machine. ops.py is the only file that imports kernels/: it chooses between them and torch.

products.py multiplies with weight matrices: on a CPU by oneDNN, elsewhere by torch. draw.py draws tokens from logits.
distributed.py is about several processes. It imports nothing else of grpo/ but errors.py.
"""
