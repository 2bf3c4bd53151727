"""Ask language models behind an OpenAI-compatible API. Judge and decomposer share this one client.

This folder may import `rewards.registry`, `grpo.base` and `knowledge`. Read in this order:

    client.py       one question to one reply, or to "unscorable": OpenAI's SDK, retries, one deadline, a cache on disk;
                    the model as a run looks after it: judge and decomposer are such services
    endpoint.py     where a model is, from the configuration or the environment, and which URLs are allowed
    reply.py        what an answer of the endpoint means
    cache.py        replies on disk
"""
