"""Computing on this machine. ops.py runs kernels/, where kernel_choice.py says that they may be used.

products.py multiplies with weight matrices: on a CPU by oneDNN, elsewhere by torch (ops.py may do it in C). draw.py
draws tokens from logits. quantised.py holds numbers in few bits. waits.py says how threads wait. peers.py has what
several processes compute together: all those of a run (distributed.py), or those that hold one model (parallel/).
"""
