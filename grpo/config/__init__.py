"""The configuration: from a YAML file and a command line to one frozen object.

Read options.py (every key, with its default and meaning), then load.py (from a command to a configuration) and
reader.py (what files and arguments hold), with other_words.py (the words of other programs, and what their files leave
out); values.py (types and bounds), combinations.py (what does not work together) and help.py (what -h shows). These
files import grpo/base/ and, of rewards, their names and prompts.
"""
