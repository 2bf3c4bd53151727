"""Set up engines for a CPU that come as wheels, as peers of our sampler: in float32, with torch's number of threads.

Each is imported where it is set up: few machines have them.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from bench.workload import Work
from grpo.base.storage import read_json

POSITIONS = 256  # of a row, prompt and completion: more than any of bench.sampler has


class CTranslate2:
    """CTranslate2's generator for a checkpoint."""

    def __init__(self, path: Path):
        from ctranslate2 import Generator
        from ctranslate2.converters import TransformersConverter
        from transformers import AutoTokenizer

        folder = TransformersConverter(str(path)).convert(str(path / "ctranslate2"), force=True)
        self._engine = Generator(folder, compute_type="float32", intra_threads=torch.get_num_threads())
        self._tokenizer = AutoTokenizer.from_pretrained(path)

    def generate(self, work: Work, greedy: bool = False) -> list[str]:
        """Return the text of each completion, drawn at temperature 1 or greedily."""
        prompts = work.repeated
        shortest = min(map(len, prompts))  # the rest of the longer ones is read step by step, and counted
        ends = [len(prompt) - shortest + length for prompt, length in zip(prompts, work.lengths, strict=True)]

        def is_over(result) -> bool:
            return result.step + 1 >= ends[result.batch_id]

        found = self._engine.generate_batch(
            list(map(self._tokenizer.convert_ids_to_tokens, prompts)),
            include_prompt_in_result=False,
            sampling_topk=int(greedy),  # 0: of all tokens
            min_length=work.steps,
            max_length=max(ends),
            callback=is_over if min(ends) < max(ends) else None,
        )
        drawn = [result.sequences_ids[0] for result in found]
        assert list(map(len, drawn)) == work.lengths
        return self._tokenizer.batch_decode(drawn)


class LlamaCpp:
    """llama.cpp's server, in this process, for a checkpoint; a slot for each row."""

    def __init__(self, path: Path, rows: int):
        from xllamacpp import CommonParams, Server

        params = CommonParams()
        params.model.path = str(write_gguf(path))
        params.n_parallel = rows
        params.n_ctx = rows * POSITIONS
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
        params.verbosity = -1
        self._server = Server(params)
        self._rows = rows

    def generate(self, work: Work, greedy: bool = False) -> list[str]:
        """Return the text of each completion, drawn at temperature 1 or greedily."""

        def one(prompt: Sequence[int], length: int) -> str:
            request = {
                "prompt": list(prompt),
                "n_predict": length,
                "temperature": 0.0 if greedy else 1.0,
                "samplers": ["temperature"],
                "ignore_eos": True,
                "cache_prompt": False,
            }
            reply = self._server.handle_completions(request)
            assert reply["usage"]["completion_tokens"] == length
            return reply["choices"][0]["text"]

        with ThreadPoolExecutor(self._rows) as pool:
            return list(pool.map(one, work.repeated, work.lengths))


def write_gguf(path: Path) -> Path:
    """Write a Qwen2 checkpoint as a GGUF file, in float32, with its tokenizer's words."""
    import gguf
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    config = read_json(path / "config.json")
    file = path / "model.gguf"
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    writer.add_rope_freq_base(config["rope_theta"])
    words = AutoTokenizer.from_pretrained(path).convert_ids_to_tokens(range(config["vocab_size"]))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words))
    writer.add_token_merges(["a b"])  # llama.cpp wants some
    writer.add_eos_token_id(config["eos_token_id"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config["num_hidden_layers"])
    for name, tensor in load_file(path / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
