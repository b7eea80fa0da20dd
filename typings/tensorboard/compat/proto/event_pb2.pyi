"""Messages, whose names protobuf makes when the module is imported."""

from typing import Any

def __getattr__(name: str) -> Any: ...
