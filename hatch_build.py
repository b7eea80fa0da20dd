"""Puts a copy of the experiments into the wheel: an installed lingo can list and train them."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ExperimentsHook(BuildHookInterface):
    """Adds `tasks` and `params` as `lingo/_experiments`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":  # an editable install reads the checkout itself
            for folder in ("tasks", "params"):
                build_data["force_include"][folder] = f"lingo/_experiments/{folder}"
