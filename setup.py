from setuptools import find_packages, setup

setup(
    name="grpo",
    version="0.1.0",
    description="GRPO from scratch in PyTorch: KnowRL's knowledge-checked rewards, and mathematics",
    license="MIT",
    python_requires=">=3.11",
    packages=[*find_packages(include=["grpo*", "rewards*", "knowledge*"]), "grpo.kernels"],
    package_dir={"grpo.kernels": "kernels"},  # its own name belongs to another library: see grpo/__init__.py
    package_data={"grpo.report": ["page.html"], "rewards": ["examples/*"], "knowledge": ["almanac.csv"]},
    install_requires=[
        "torch>=2.11,<2.14",
        "transformers>=5.0",
        "safetensors>=0.5",
        "numpy>=1.26",
        "mpmath>=1.3",
        "psutil>=5.9",
        "openai>=1.60",
        "pyyaml>=6.0",
        "tqdm>=4.66",
        "tensorboard>=2.16",
        "matplotlib>=3.8",
        "jinja2>=3.1",
    ],
    extras_require={
        "parquet": ["pyarrow>=14"],
        "gguf": ["gguf>=0.10"],
        "flash": ["flash-attn>=2.7"],
        "test": [
            "pytest>=8.0",
            "pytest-xdist>=3.5",
            "ruff>=0.14",
            "hypothesis>=6.100",
            "triton>=3.5",
            "peft>=0.18",
            "gguf>=0.10",
            "nbclient>=0.10",
            "ipykernel>=6.29",
        ],
        "bench": ["trl>=0.27", "peft>=0.18", "rank-bm25>=0.2"],
        "track": ["swanlab", "wandb"],
    },
)
