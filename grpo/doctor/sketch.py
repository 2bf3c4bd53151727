"""The model of a case, sketched: its decoder without weights, and what it takes."""

import re
from dataclasses import replace

from grpo.base.errors import UserError
from grpo.config.load import replicas_of
from grpo.doctor.case import Case, need
from grpo.engine.model import memory
from grpo.engine.model.build import Build
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.weights import named_tensors, read_model_config
from grpo.engine.parallel.shard import Shard
from grpo.engine.parallel.shared_decoder import make_decoder
from grpo.policy import ModelParts, choose_dtype, lora_spec

UNITS = ((1e9, "B"), (1e6, "M"))
MOST_ON_A_CPU = 1e9  # weights; a step with more takes hours there
_SIZE = re.compile(r"(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")  # of a model, in its name: Qwen2.5-Math-1.5B


def sketch(case: Case) -> Decoder | None:
    """Build the run's decoder without weights; None if its config cannot be found or is not usable."""
    if case.decoder is None and case.start.model_name_or_path and isinstance(case.parts, ModelParts):
        config = case.config
        try:
            lora = lora_spec(config)
            dtype = choose_dtype(config.torch_dtype, case.device)
            build = Build(lora, lora is None, dtype, "meta", int8=config.base_weights == "int8")
            case.decoder = Decoder(read_model_config(case.parts.model), build)
        except UserError:
            return None  # `model` raises it
    return case.decoder


def share_of(case: Case) -> Decoder:
    """Return the part of the decoder that one process holds, without weights."""
    decoder = need(sketch(case), "the model")
    num_shards = case.config.tensor_parallel_size
    if num_shards == 1:
        return decoder
    build = replace(decoder.build, shard=Shard(0, num_shards))
    return make_decoder(decoder.config, build)


def sketch_reference(case: Case) -> Decoder | None:
    """Return the reference, if it is a second model: where all weights are trained."""
    decoder = share_of(case)
    if not getattr(case.config, "beta", 0) or decoder.build.lora:
        return None
    return Decoder(decoder.config, replace(decoder.build, train_weights=False))


def kept(case: Case) -> memory.Account:
    """Count what model and optimizer take in each process, once they are loaded."""
    loaded = memory.Loaded(share_of(case), sketch_reference(case), replicas_of(case.config))
    return loaded.account()


def lacks_a_gpu(case: Case) -> bool:
    """Return whether a large model would be trained on a CPU that the configuration does not name."""
    return case.device.type == "cpu" and case.config.device == "auto" and num_weights(case) >= MOST_ON_A_CPU


def num_weights(case: Case) -> float:
    """Count the model's weights by its config, or else by its name; 0 if neither says."""
    if decoder := sketch(case):
        return sum(tensor.numel() for tensor in named_tensors(decoder).values())
    sizes = _SIZE.findall(case.start.model_name_or_path or "")
    return float(sizes[-1]) * 1e9 if sizes else 0


def bytes_needed(case: Case, number: float) -> str:
    """Say what a model of so many weights takes on a GPU, and on this CPU."""
    weights = (
        f"its weights take {2 * number / 1e9:.1f} GB in bfloat16 on a GPU and {4 * number / 1e9:.1f} GB in float32"
    )
    if not case.decoder:
        return f"{weights} (counted by its name: its config.json is not here)"
    training = kept(case).training / 1e9
    return f"{weights}, and what is trained {training:.1f} GB with gradient and moments"


def rounded(number: float) -> str:
    """Write a large number in millions or billions, and a small one in full."""
    for size, unit in UNITS:
        if number >= size / 10:
            return f"{number / size:,.2f}{unit}"
    return f"{number:,.0f}"
