"""Tools in the middle of a completion: it writes a call, and what the tool gives follows as a result.

functions.py    names to tools: functions, among them the search of the knowledge base; which protocol calls them
protocol.py     where a completion pauses at its calls, and how results become tokens that are data and nothing else
tags.py         calls by tags, with one text
template.py     calls by the model's chat template, with typed arguments, and results as the template writes them
arguments.py    whether the arguments of a call fit the description of its tool
environment.py  an object of the user's for each completion, whose methods are tools
workers.py      calls on threads of their own, each with its deadline
tools.py        the tools of a run, as the sampler takes them

The sampler knows no text and no tool (grpo/engine/sampling/sampler.py); which tokens were given stands in
`Completion.calls`.
"""
