"""Tools in the middle of a completion: it writes `<search>query</search>`, and what is found follows as a result.

functions.py  names to tools: functions from a text to a text, among them the search of the knowledge base
protocol.py   where a completion calls a tool, and how a result becomes tokens that are data and nothing else
workers.py    calls on threads of their own, each with its deadline
tools.py      the tools of a run, as the sampler takes them

The sampler knows no text and no tool (grpo/engine/sampling/sampler.py); which tokens were given stands in
`Completion.calls`.
"""
