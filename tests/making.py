"""What tests are made of: small checkpoints written by transformers, a tokenizer with a chat template, data files.

Every checkpoint has random weights and is made here; nothing is downloaded.
"""

import contextlib
import json
import os
import random
import re
import socket
import sys
from copy import copy
from pathlib import Path

import pytest
import torch
from commands import python
from safetensors.torch import load_file

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.packing import pack_batch
from grpo.algorithm.schema import POLICY, Completion, Group, Layout, PackedBatch, Prompt, Subgroup
from grpo.base.errors import UserError
from grpo.config.load import load_config
from grpo.engine.attention.packed import PackedAttention
from grpo.engine.device.peers import Peers
from grpo.engine.device.quantised import FORMATS
from grpo.engine.model.adapter import save_adapter, trained_adapter
from grpo.engine.model.build import Build, LoraSpec
from grpo.engine.model.weights import load_decoder
from grpo.engine.parallel import shard
from knowledge.build import build
from rewards.scorer import Scorer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


ALONE = Peers()
ALONE.replicas, ALONE.shard, ALONE.is_main = ALONE, shard.ALONE, True


def twins(**changes):
    """Ranks of which there are two, and the other does what this one does."""
    ranks = copy(ALONE)
    ranks.world, ranks.replicas, ranks.is_restart = 2, ranks, False
    ranks.sum, ranks.max = lambda values: [2 * value for value in values], float
    ranks.gather = lambda value: [value, value]
    ranks.sum_to_parts = lambda tensor: 2 * tensor[: len(tensor) // 2]
    ranks.join_parts_ = ranks.agree = ranks.barrier = ranks.close = lambda *given: None
    vars(ranks).update(changes)
    return ranks


SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"  # real data, where somebody has put it there


def real_data(name):
    """A real data file; the test is skipped where it is absent."""
    if not (SHARED / name).exists():
        pytest.skip(f"needs real data that is not part of the project: {name}")
    return SHARED / name


def cases(test, section):
    """The lines of a section in the cases of a test file, cut at ` => `. `\\n` in them stands for a line break."""
    name = Path(test).stem.removeprefix("test_")
    text = Path(test).with_name(f"{name}_cases.txt").read_text(encoding="utf-8")
    lines = text.partition(f"\n== {section}\n")[2].partition("\n== ")[0].splitlines()
    return [[part.strip().replace("\\n", "\n") for part in f"{line} ".split(" => ")] for line in lines if line]


def write_checkpoint(folder, family="qwen2", seed=0, spread=0.1, dtype=torch.float32, **changes):
    """A small random checkpoint of transformers' own class. spread: standard deviation of the weights; norms and biases
    vary too, so that a test notices if one is left out."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    if family == "mistral":
        shape["sliding_window"] = None
    if family in ("qwen3", "mistral"):
        shape["head_dim"] = 16
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**shape, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(dtype)
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, spread)
    model.save_pretrained(folder)
    return folder


def load(folder, rank=0, dtype=torch.float32, train_weights=False, held=None, spread=0.1, adapter=None, **lora):
    """Our decoder for a checkpoint, with an adapter of the given rank, filled with random numbers of this spread."""
    spec = LoraSpec(rank, lora.pop("alpha", 2 * rank), **lora) if rank else None
    model = load_decoder(folder, Build(spec, train_weights, dtype, "cpu", FORMATS.get(held)), adapter)
    randomise_adapter(model, spread=spread)
    return model


def from_transformers(folder, **options):
    """transformers' own model of a checkpoint."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


@torch.no_grad()
def logits_of(model, ids):
    """Our logits of one sequence, after each token."""
    return hidden_states(model, ids) @ model.head().T


def hidden_states(model, ids, mode=POLICY):
    """Those of one sequence, after the last norm."""
    attend = PackedAttention(Layout.of((len(ids), ())), model.build.dtype, "cpu")
    return model(ids, torch.arange(len(ids)), attend, mode)


def kept_by_autograd(model, attend, num_tokens):
    """Bytes per token of one micro-batch, weights apart."""
    kept, weights = {}, {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor, storage.nbytes()  # the tensor, so that its address is not used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model(torch.zeros(num_tokens, dtype=torch.int64), torch.arange(num_tokens), attend)
    assert hidden.requires_grad
    return sum(size for _, size in kept.values()) / num_tokens


FORKS = """
import json, os, torch
torch.set_num_threads(1)
def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key + ":"))
{code}
for case in {cases!r}:
    if os.fork() == 0:
        print(json.dumps(measure(*case)), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def measured_in_forks(code, cases):
    """What `measure(*case)` of this code returns, each in a fork of one new process that has run the code; its
    allocator gives freed memory back. `status("VmHWM")` are the bytes of the process's peak."""
    paths, code = os.pathsep.join(sys.path), FORKS.format(code=code, cases=list(cases))
    done = python("-c", code, MALLOC_MMAP_THRESHOLD_="65536", PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def randomise_adapter(model, seed=0, spread=0.1):
    """An adapter that is not zero, so that it matters."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.lora_linears():
        for part in layer.rank_slices:
            for half in layer.adapter(part):
                half.copy_(torch.randn(half.shape, generator=generator) * spread)
    model.refresh()


def write_adapter(folder, checkpoint):
    """A random adapter of a checkpoint, with its tokenizer."""
    from transformers import AutoTokenizer

    save_adapter(trained_adapter(load(checkpoint, rank=4), None, str(checkpoint)), folder, lora_alpha=8)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    return folder


def make_completion(ids, finish_reason="stop", **fields):
    """A completion whose tokens all had the log-prob -0.5, of a distribution that was not cut off."""
    return Completion(list(ids), [-0.5] * len(ids), [float("-inf")] * len(ids), finish_reason, **fields)


def make_group(prompt, *completions, **fields):
    """A group of such completions. fields: of the completions, one value for each."""
    group = Group(Prompt(0, "", tuple(prompt), {}), [make_completion(ids) for ids in completions])
    return fill(group, **fields)


def outcomes_of(letters):
    """The outcomes of answers: c for correct, w for wrong, r for refused, - for one of which nothing is known."""
    return [{"c": "correct", "w": "wrong", "r": "refused", "-": None}[letter] for letter in letters]


def make_answers(columns, *texts, prompt="p"):
    """A group of completions with these texts; the only token of each is its length. columns: the data row."""
    members = [make_completion([len(text)], text=text) for text in texts]
    return Group(Prompt(0, prompt, (1,), columns), members)


def grade_groups(rewards, *groups, weights=None):
    """Grade the groups as a run does, and return the metrics."""
    with contextlib.closing(Scorer(rewards, weights)) as scorer:
        scorer.grade(groups)
        return scorer.take_metrics()


def groups_of(prompts, completions):
    """What a sampler returned for these prompts, as groups."""
    return [
        Group(Prompt(row, "", tuple(prompt), {}), members)
        for row, (prompt, members) in enumerate(zip(prompts, completions, strict=True))
    ]


def fill(group, **fields):
    """The group, with fields of its completions set to the values given, one for each."""
    for name, values in fields.items():
        for completion, value in zip(group.completions, values, strict=True):
            setattr(completion, name, value)
    return group


def of_each(group, name):
    """A field of each completion."""
    return [getattr(completion, name) for completion in group.completions]


def whole(*groups):
    """One micro-batch of all completions of the groups."""
    return [Subgroup(group, group.completions) for group in groups]


def visible_in(layout):
    """Which tokens of a micro-batch each one sees: its prompt, and its own completion up to itself."""
    owners = []
    for number, group in enumerate(layout.groups):
        owners += [(number, None)] * group.prompt_length
        for completion, length in enumerate(group.completion_lengths):
            owners += [(number, completion)] * length
    seen = [[group == g and own in (None, c) for group, own in owners] for g, c in owners]
    return torch.tensor(seen).tril()


GROUPS = [  # to be scored
    make_group((5, 9, 6, 11), [7, 3, 2], [8, 8, 4, 4, 1, 2, 17, 18, 19, 20], [9], loss_weight=[0.125, 0.25, 0.375]),
    make_group((15, 19, 1, 2, 3, 4, 5, 6), [17, 2], [30, 31, 32], loss_weight=[0.5, 0.25]),
]


def scored(model, groups=GROUPS, temperature=1.0):
    """Our log-probs of all tokens of the completions, and the weights of these; their product is differentiated."""
    for group in groups:
        fill(group, advantage=[0.0] * len(group.completions))
    batch = pack_batch(whole(*groups))
    logp, _ = batch_logprobs(model, batch, temperature=temperature)
    (logp * batch.weight_C).sum().backward()
    return logp.detach(), batch.weight_C


def scored_by_rows(model, weights, temperature=1.0):
    """The same of GROUPS by a model of transformers, one row for each completion."""
    rows = []
    for prompt, ids in ((group.prompt.ids, one.ids) for group in GROUPS for one in group.completions):
        logits = model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        rows.append((logits / temperature).log_softmax(-1)[range(len(ids)), ids])
    logp = torch.cat(rows)
    (logp * weights).sum().backward()
    return logp.detach()


def error_of_gradients(ours, theirs):
    """The largest difference of an adapter's gradient from that of PEFT's; each of theirs is one of ours."""
    gradients, errors = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}, []
    for module, (linear, part) in ours.projections().items():
        if part in linear.rank_slices:
            for half, grad in (("A", linear.A.master.grad[linear.rank_slices[part]]), ("B", linear.B[part].grad)):
                (name,) = (name for name in gradients if f"{module}.lora_{half}" in name)
                errors.append((grad - gradients.pop(name)).abs().max())
    assert not gradients
    return torch.stack(errors).max()


def loss_batch(weights, advantages, old, ref=None, sampler=None, rows=None):
    """What the loss reads of a micro-batch, given per token; each token is a completion of its own unless `rows` says
    otherwise."""
    nothing = torch.zeros(0, dtype=torch.int64)
    weight_C, sampler_C = (torch.tensor(x) for x in (weights, sampler or [0.0] * len(weights)))
    completion_C = torch.tensor(range(len(weights)) if rows is None else rows)
    return PackedBatch(
        number=0,
        completions=[],
        layout=Layout(()),
        **dict.fromkeys(("ids_T", "positions_T", "source_C", "targets_C", "cut_C"), nothing),  # which it does not read
        completion_C=completion_C,
        weight_C=weight_C,
        advantage_C=torch.tensor(advantages),
        sampler_logp_C=sampler_C,
        ref_logp_C=None if ref is None else torch.as_tensor(ref),
        old_logp_C=None if old is None else torch.as_tensor(old),
    )


def make_tokenizer(texts, folder, vocab_size=400):
    """A byte-level BPE tokenizer with ChatML's special tokens, trained on the texts and saved."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["system\nuser\nassistant\n", *texts], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def write_chat_checkpoint(folder, spread=0.1, family="qwen2", **changes):
    """A checkpoint with a tokenizer and a chat template."""
    sums = [(a, b) for a in range(30) for b in range(0, 30, 3)]
    texts = [f"What is {a} + {b}? The answer is \\boxed{{{a + b}}}. <think> <answer>" for a, b in sums]
    tokenizer = make_tokenizer(texts, folder)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 1024}
    write_checkpoint(folder, family, eos_token_id=tokenizer.eos_token_id, spread=spread, **sizes, **changes)
    tokenizer.save_pretrained(folder)
    return folder


def free_port():
    """A port that nobody else is given before it is used: it lies below those that systems give away by themselves."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return str(port)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def edit_json(path, **changes):
    """Change keys of the object in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def read_lines(path):
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]  # U+2028 ends none


def run_state(folder):
    """What run_state.json says of the run in the folder."""
    return json.loads((folder / "run_state.json").read_text(encoding="utf-8"))


def flip_last_bit(path):
    """Damage a file."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def same_tensors(one, other):
    """Whether two safetensors files hold the same tensors, bit for bit."""
    first, second = load_file(one), load_file(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def build_base(folder, documents, **options):
    """Build a knowledge base of {title: text or list of texts} in the folder."""
    source = write_rows(folder / "articles.jsonl", [{"title": title, "text": documents[title]} for title in documents])
    build(source, folder / "base.db", **options)
    return folder / "base.db"


def configured(folder, **keys):
    """The configuration of a run in folder/run whose model and data are never made."""
    keys = {
        "toy_world": "arithmetic",
        "output_dir": folder / "run",
        "reward_funcs": "exact",
        "report_to": "none",
        "disable_tqdm": "true",
        "device": "cpu",
        "logging_steps": 3,
        **keys,
    }
    return load_config(None, [f"{name}={value}" for name, value in keys.items()])[0]


def refused(call, *parts, exit_code=3):
    """Return the UserError that a call raises: with this exit code, these parts, a cause and a correction."""
    with pytest.raises(UserError) as error:
        call()
    assert error.value.exit_code == exit_code
    assert error.value.why
    assert error.value.fix
    for part in parts:
        assert part in str(error.value), str(error.value)
    return error.value


def unused(notices):
    """Return the keys of a configuration that notices name as not used."""
    found = [re.search(r"^\S+ (.*) (?:is|are) not used: ", notice.removeprefix("note: ")) for notice in notices]
    return [name for match in found if match for name in match[1].split(", ")]


TAGS = "<search> </search> <shout> </shout> <result> </result> <think> </think> <answer> </answer>".split()
WITH_TAGS = (
    "a<search>b <search>c b</search> </search>! </search><search> c<shout>d <shout>e d</shout> </shout>?".split()
)


def pieces_tokenizer(texts):
    """Pieces with a mark for the space, and single bytes for what they lack, as Llama's and Mistral's have it."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    pieces = sorted(
        {piece for text in texts for word in text.split() if word.isascii() for piece in ("▁" + word, *word)}
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {piece: i for i, piece in enumerate(["<unk>", "</s>", *bytes_, "▁", *pieces])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", chat_template=TEMPLATE)


def write_tool_checkpoint(folder):
    """A checkpoint of few tokens, among them the tags of tools, whole, in parts and beside others: a random model calls
    often."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    characters = "abcdefghijklmnoprstuvwyz0123456789ĠĊ.:<>/!?[]|+" + "âĢ¹º"  # bytes; the last four spell ‹ and ›
    names = dict.fromkeys([*special, *TAGS, *WITH_TAGS, "search", "</", *characters])
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=special[2], pad_token=special[0], additional_special_tokens=[special[1]]
    )
    fast.chat_template = TEMPLATE
    sizes = {"vocab_size": len(fast), "max_position_embeddings": 512, "eos_token_id": fast.eos_token_id}
    write_checkpoint(folder, spread=0.5, **sizes)
    fast.save_pretrained(folder)
    return folder
