"""Ask language models behind an OpenAI-compatible API. Judge and decomposer share this one client.

It knows no rewards. It may import `grpo.base` and `knowledge`. Read in this order:

    client.py       one question to one reply, or to "unscorable": retries, deadlines, limits, costs, a cache on disk
    question.py     a question's request, its key in the cache, and its tries: whether and when another one is of use
    limits.py       how much may be asked: deadlines, requests per minute and at once
    endpoint.py     where a model is, from the configuration or the environment, and which URLs are allowed
    connections.py  the SDK's client, and what it sends
    reply.py        what an answer of the endpoint means
"""
