"""Chat templates that take tools, written anew from the formats of five families, and tokenizers for them."""

from making import edit_json, write_checkpoint

_CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
_HERMES_SYSTEM = (
    "<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "# Tools\n\nYou may call functions. Their signatures are within <tools></tools>:\n<tools>"
    "{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}\n</tools>\n\nFor each call, return a JSON object in "
    '<tool_call></tool_call>:\n<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n'
)
_HERMES_CALLS = (
    "{% for c in m.tool_calls %}{% if not loop.first or m.content %}{{ '\n' }}{% endif %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
_HERMES_RESULT = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>{{ '\n' }}{% endif %}"
)
_HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TOOLS = "{% if tools %}" + _HERMES_SYSTEM + "{% endif %}{% for m in messages %}"
_SYSTEM = "{% if m.role == 'tool' %}" + _HERMES_RESULT + "{% elif m.role == 'system' and tools %}"

QWEN25 = (
    _TOOLS + _SYSTEM + "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}" + _HERMES_CALLS
    + "<|im_end|>\n{% else %}" + _CHATML + "{% endif %}{% endfor %}" + _HEADER
)  # fmt: skip
# Thoughts of turns before the last question are dropped; the last turn has an empty block if it has no thoughts.
QWEN3 = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}" + _TOOLS + _SYSTEM + "{% elif m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% set said = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{% if loop.index0 > ns.last and (loop.last or '</think>' in m.content) %}<think>\n"
    "{{ m.content.split('</think>')[0].replace('<think>', '').strip('\n') if '</think>' in m.content else '' }}"
    "\n</think>\n\n{% endif %}{{ said }}" + _HERMES_CALLS
    + "<|im_end|>\n{% else %}" + _CHATML + "{% endif %}{% endfor %}" + _HEADER
)  # fmt: skip
LLAMA31 = (
    "<|begin_of_text|>{% set user = namespace(done=false) %}"
    "<|start_header_id|>system<|end_header_id|>\n\n{% if tools %}Environment: ipython\n{% endif %}<|eot_id|>"
    "{% for m in messages %}{% if m.role == 'user' and tools and not user.done %}{% set user.done = true %}"
    "<|start_header_id|>user<|end_header_id|>\n\nGiven the following functions, respond with JSON for a function call."
    '\n\nRespond in the format {"name": function name, "parameters": dictionary}.\n\n'
    "{% for tool in tools %}{{ tool | tojson(indent=4) }}\n\n{% endfor %}{{ m.content | trim }}<|eot_id|>"
    "{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}<|eot_id|>'
    "{% elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{% set asked = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set asked.last = loop.index0 %}{% endif %}{% endfor %}<s>{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.index0 == asked.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ m.content }}[/INST]{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('Tool call IDs should have length 9!') }}{% endif %}"
    '{{ {"name": c.function.name, "arguments": c.function.arguments, "id": c.id} | tojson }}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>{% elif m.role == 'assistant' %} {{ m.content }}</s>"
    '{% elif m.role == \'tool\' %}[TOOL_RESULTS] {"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}'
    "[/TOOL_RESULTS]{% endif %}{% endfor %}"
)
SMOLLM2 = (
    "{% if tools %}<|im_start|>system\nYou are an expert in composing functions: {{ tools | tojson }}\nReturn "
    '<tool_call>[{"name": "func_name", "arguments": {}}]</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}{% if m.tool_calls %}<|im_start|>assistant\n<tool_call>[{% for c in m.tool_calls %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{% endfor %}]</tool_call>'
    "<|im_end|>\n{% else %}" + _CHATML + "{% endif %}{% endfor %}" + _HEADER
)  # fmt: skip

# The template; how a list of calls is written, before the end of the turn; what follows that end, around the results.
HERMES_FOLLOWS = (
    "\n<|im_start|>user",
    "\n<tool_response>\n{}\n</tool_response>",
    "<|im_end|>\n<|im_start|>assistant\n",
)
LLAMA_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
FAMILIES = {
    "qwen2.5": (QWEN25, "<|im_end|>", HERMES_FOLLOWS),
    "qwen3": (QWEN3, "<|im_end|>", HERMES_FOLLOWS),
    "llama3.1": (
        LLAMA31, "<|eot_id|>",
        ("", LLAMA_HEADER.format("ipython") + "{!j}<|eot_id|>", LLAMA_HEADER.format("assistant")),
    ),
    "mistral": (
        MISTRAL, "</s>", ("", '[TOOL_RESULTS] {{"content": {}, "call_id": "call00001"}}[/TOOL_RESULTS]', ""),
    ),
    "smollm2": (SMOLLM2, "<|im_end|>", ("\n", "<|im_start|>tool\n{}<|im_end|>\n", "<|im_start|>assistant\n")),
}  # fmt: skip
# Likewise; and a call, with a text and what may be true.
_CODER_CALLS = (
    "{% for c in m.tool_calls %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}"
)
GLM = (
    "[gMASK]<sop>{% if tools %}<|system|>\n{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}{% else %}<|{{ m.role }}|>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}\n"
    "{% for k, v in c.function.arguments | items %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
IN_TAGS = {
    "qwen3-coder": (
        QWEN25.replace(_HERMES_CALLS, _CODER_CALLS), "<|im_end|>", HERMES_FOLLOWS,
        "<tool_call>\n<function=keep>\n<parameter=text>\n{}\n</parameter>\n<parameter=on>\n{}\n</parameter>\n"
        "<parameter=numbers>\n[1]\n</parameter>\n</function>\n</tool_call>",
    ),
    "glm-4.5": (
        GLM, "<|endoftext|>", ("", HERMES_FOLLOWS[1], "<|assistant|>"),
        "<tool_call>keep\n<arg_key>text</arg_key>\n<arg_value>{}</arg_value>\n<arg_key>on</arg_key>\n<arg_value>{}"
        "</arg_value>\n<arg_key>numbers</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call>",
    ),
}  # fmt: skip
ENDS = [f"<end{number}>" for number in range(25)]  # tokens that end a turn, so that random models end many
CHATML_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIAL = {
    "glm-4.5": "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>".split(),
    "llama3.1": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "mistral": "<s> </s> [INST] [/INST] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS] [AVAILABLE_TOOLS] "
    "[/AVAILABLE_TOOLS]".split(),
}


def special_of(family):
    return SPECIAL.get(family, CHATML_SPECIAL)


def tokenizer_of(family, words=()):
    """Bytes, the family's special tokens, and some words, which only a model draws."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special, template, end = special_of(family), *(FAMILIES | IN_TAGS)[family][:2]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = [level.pre_tokenize_str(word)[0][0] for word in words]
    names = dict.fromkeys([*special, *alphabet, ".ĊĊ", ".Ċ", *spelled])
    merges = [(".", "Ċ"), (".Ċ", "Ċ")]  # a result's last character and what follows it may be one token
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, merges=merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = level, decoders.ByteLevel()
    rest = [token for token in special if token != end]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, pad_token=end, additional_special_tokens=rest
    )
    if family in ("qwen3", *IN_TAGS):
        fast.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"])
    fast.chat_template = template
    return fast


def write_typed_checkpoint(folder, family, words):
    """A random model with the tokenizer of a family."""
    tokenizer = tokenizer_of(family, words)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 4096, "eos_token_id": tokenizer.eos_token_id}
    write_checkpoint(folder, spread=0.5, **sizes)
    tokenizer.save_pretrained(folder)
    return folder


def write_calling_checkpoint(folder, calls):
    """A random model with Qwen2.5's template that often makes some calls, and ends its turns."""
    words = [*(call + " " * number for call in calls for number in range(20)), *ENDS]
    write_typed_checkpoint(folder, "qwen2.5", words)
    ends = tokenizer_of("qwen2.5", words).convert_tokens_to_ids(ENDS)
    edit_json(folder / "generation_config.json", eos_token_id=ends)
    return folder
