"""The configuration: from a YAML file and a command line to one frozen object.

Read options.py (every key, with its default and meaning), then load.py (reading), values.py (types and bounds) and
combinations.py (what does not work together). This room imports errors.py and the names of rewards/, nothing else.
"""
