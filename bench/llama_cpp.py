"""Set up llama.cpp as a peer of our sampler on a CPU: its server in this process, in float32, with torch's threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from bench.workload import Ids, Work
from grpo.base.storage import read_json

POSITIONS = 256  # of a row, prompt and completion: more than any of bench.sampler has


class LlamaCpp:
    """llama.cpp's server for a checkpoint, with a slot for each row."""

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

        def one(prompt: Ids, length: int) -> str:
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
