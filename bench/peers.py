"""Set up whom we are compared with: transformers' model, CTranslate2's generator, and TRL's GRPOTrainer.

Their libraries are imported where they are needed, since a benchmark also runs without its peers.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from bench.workload import Ids, Work, plain_logprobs
from grpo.algorithm.schema import Completion
from grpo.config.options import TrainConfig
from grpo.engine.model.build import Build

SHARED = (  # keys that mean the same to TRL and to us; all of the loss and of sampling, since defaults differ
    "num_generations max_completion_length temperature top_p beta loss_type scale_rewards epsilon epsilon_high delta "
    "importance_sampling_level multi_objective_aggregation num_iterations mask_truncated_completions entropy_coef "
    "use_bias_correction_kl learning_rate lr_scheduler_type warmup_steps adam_beta1 adam_beta2 weight_decay "
    "max_grad_norm max_steps per_device_train_batch_size seed"
)


def transformers_model(path: Path, build: Build):
    """Load transformers' model of a checkpoint, with its fastest attention and without an adapter."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=build.dtype, attn_implementation="sdpa")
    return model.to(build.device).eval()


class CTranslate2:
    """CTranslate2's generator for a checkpoint: in float32, on a CPU, with torch's number of threads."""

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


def logprob_errors(peer, pairs: Iterable[tuple[Ids, Completion]]) -> torch.Tensor:
    """Return how far the log-probs of all tokens are from those of transformers' model. pairs: prompt, completion."""
    errors = []
    for prompt, completion in pairs:
        ids_T = torch.tensor([*prompt, *completion.ids], device=peer.device)
        with torch.inference_mode():
            logits_TV = peer(ids_T[None, :-1]).logits[0]
        start = len(prompt)
        logp_T = plain_logprobs(logits_TV[start - 1 :].float(), ids_T[start:])
        errors.append((logp_T.cpu() - torch.tensor(completion.logps)).abs())
    return torch.cat(errors)


def trl_trainer(path: Path, build: Build, rows: list[dict], reward: Callable, config: TrainConfig, bf16: bool):
    """Make TRL's trainer of a checkpoint with the settings of one of our runs. bf16: it runs with autocast.

    It neither recomputes activations, nor logs, nor saves.
    """
    import pyarrow as pa
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    lora = LoraConfig(r=config.lora_r, lora_alpha=config.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    return GRPOTrainer(
        model=transformers_model(path, build),
        reward_funcs=reward,
        args=GRPOConfig(
            **{name: getattr(config, name) for name in SHARED.split()},
            use_cpu=config.device != "cuda",
            top_k=0,
            bf16=bf16,
            gradient_checkpointing=False,
            output_dir=str(path.parent / "trl"),
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        # With a fingerprint given, datasets does not pickle the table, which fails with some versions of pyarrow.
        train_dataset=Dataset(pa.Table.from_pylist(rows), fingerprint="rows"),
        processing_class=AutoTokenizer.from_pretrained(path),
        peft_config=lora,
    )
