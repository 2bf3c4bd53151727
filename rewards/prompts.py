"""System prompts that ask for what rewards grade. A configuration gets one if it sets none."""

from collections.abc import Sequence

BLOCKS = """\
Think first, between <think> and </think>: recall what you know and check it against facts. Then give the answer
alone, between <answer> and </answer>. If you do not know it, write there exactly: I don't know

Two examples:
<think>The Rhine flows through Basel, and Basel is a city in Switzerland.</think>
<answer>Switzerland</answer>
<think>I recall no film of that name, and would have to guess its director.</think>
<answer>I don't know</answer>"""

BLOCKS_AND_CONFIDENCE = """\
Think first, between <think> and </think>: recall what you know and check it against facts. Then give the answer
alone, between <answer> and </answer>. If you are not sure, give your best guess. Last, between <confidence> and
</confidence>, write the probability that the answer is right, from 0 to 1.

Two examples:
<think>The Rhine flows through Basel, and Basel is a city in Switzerland.</think>
<answer>Switzerland</answer>
<confidence>0.97</confidence>
<think>I recall no film of that name. John Ford directed many films in those years.</think>
<answer>John Ford</answer>
<confidence>0.05</confidence>"""

BOXED = """\
Think first, between <think> and </think>: reason step by step. Then give the answer alone, within \\boxed{}, between
<answer> and </answer>. An example:
<think>There are 3 boxes of 4 pens each, and 3 times 4 is 12.</think>
<answer>\\boxed{12}</answer>"""

STEP_BY_STEP = "{question}\n\nReason step by step, and put your final answer within \\boxed{}."  # of a question

CALLS = """\
You can call {names} while you think: write {example}, and what it gives follows, between <result> and </result>."""


def tag_of(tool: str) -> str:
    """Return the tag of a tool by its name in the configuration: the function's own name.

    >>> tag_of("./mine.py:Tools.calculator")
    'calculator'
    """
    return tool.rpartition(":")[2].rpartition(".")[2]


def with_tools(prompt: str, tools: Sequence[str]) -> str:
    """Return a system prompt that also tells how to call the tools of these names."""
    tags = [tag_of(tool) for tool in tools]
    told = CALLS.format(names=" and ".join(tags), example=f"<{tags[0]}>your text</{tags[0]}>") if tags else ""
    return "\n\n".join(filter(None, (prompt, told)))
