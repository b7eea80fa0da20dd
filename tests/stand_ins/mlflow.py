"""Stands in for MLflow where it is not installed: takes the calls of docs/metrics.md."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[\w.:/ -]+")


def set_tracking_uri(uri: str) -> None:
    assert "://" in uri


def start_run(*, run_name: str) -> None:
    assert run_name


def log_params(parameters: Mapping[str, object]) -> None:
    assert all(map(_NAME.fullmatch, parameters))


def log_metrics(metrics: Mapping[str, float], *, step: int, timestamp: int) -> None:
    assert all(map(_NAME.fullmatch, metrics)), (step, timestamp)


def end_run(status: str) -> None:
    print("mlflow has ended", status)
