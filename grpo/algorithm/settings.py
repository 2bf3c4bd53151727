"""The settings of a step: what the algorithm needs of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Settings:
    """The settings of a step, under the names of their keys in grpo/config/options.py, which says what each means."""

    seed: int = 42
    num_generations: int = 8
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    max_completion_length: int = 512
    temperature: float = 1.0
    loss_type: str = "dapo"
    scale_rewards: str = "group"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.0
    num_iterations: int = 1
    learning_rate: float = 1e-6
    lr_scheduler_type: str = "linear"
    warmup_ratio: float = 0.0
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    lora_dropout: float = 0.0
    # of variants
    entropy_coef: float = 0.0
    delta: float | None = None
    importance_sampling_level: str = "token"
    sampler_importance_sampling_correction: bool = False
    sampler_importance_sampling_cap: float = 2.0
    use_bias_correction_kl: bool = False
    mask_truncated_completions: bool = False
    multi_objective_aggregation: str = "sum_then_normalize"
    refusal_target: float | None = None
    dynamic_sampling: bool = False
    dynamic_sampling_max_rollouts: int = 3
    credit: str = "completion"
    tools: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: object) -> Settings:
        """Take the settings from a configuration. Those that it does not have (stage 1) keep their defaults."""
        names = [entry.name for entry in fields(cls) if hasattr(config, entry.name)]
        return cls(**{name: getattr(config, name) for name in names})

    @property
    def completions_per_replica(self) -> int:
        """Return how many completions a replica trains on in each step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def groups_per_replica(self) -> int:
        """Return how many groups a replica samples in each step."""
        return self.completions_per_replica // self.num_generations
