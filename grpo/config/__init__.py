"""The configuration: every key with its meaning (options.py), and a YAML file to one frozen config (load.py).

It imports errors.py and the names of rewards/, and nothing else.
"""
