"""What everything else stands on: grpo/, rewards/ and knowledge/ import this folder, and it imports nothing of them.

errors.py    what failed, why, and what to type
storage.py   files that are complete or absent
folders.py   folders that are complete or absent, with a manifest
progress.py  messages of a command
text.py      what counts as text
alarms.py    signals by which a process interrupts itself
event_loop.py  a thread on which coroutines wait
forks.py     what a forked process must not share
time_limit.py  limits on foreign code
"""
