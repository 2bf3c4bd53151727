"""What a program passes to a run as objects of Python, where a configuration names files and functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo.base.storage import Json, write_atomically, write_lines
from rewards.registry import UserFunctions


@dataclass(frozen=True)
class Objects:
    """Rows, rewards and tools of a program, and the configuration that names them.

    rows: records by the file that will hold them. rewards, tools: functions by their names. config_path, config_text:
    a file, which does not exist yet, and its content.
    """

    rows: Mapping[str, list[Json]] = field(default_factory=dict)
    rewards: UserFunctions = field(default_factory=dict)
    tools: Mapping[str, Callable] = field(default_factory=dict)
    config_path: Path | None = None
    config_text: str = ""

    def write(self) -> None:
        """Write the files, by which others can repeat the run. A run does so once all its checks have passed."""
        for name, records in self.rows.items():
            write_lines(Path(name), records)
        if self.config_path is not None:
            write_atomically(self.config_path, self.config_text)


NO_OBJECTS = Objects()
