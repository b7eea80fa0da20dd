"""What a run says of itself in TensorBoard."""

from __future__ import annotations

import re

from tensorboard.plugins.custom_scalar import layout_pb2, metadata

from lingo.config.serial import Origin
from lingo.config.text import Change
from lingo.trainer.summaries.about import about_text, layout_summary

ENVIRONMENT = {
    "time": "2026-01-02",
    "argv": ["/somewhere/lingo", "train", "--exp=tiny(dim=2)", "--set=a|b"],
    "host": {"name": "h", "pid": 1},
    "versions": {"python": "3.11", "tensorflow": "2.21.0", "jax": "0.1"},
    "git": {"commit": "abc", "patch": "+"},
    "devices": ["/device:CPU:0", "/device:GPU:0", "/device:GPU:1"],
}
ORIGIN = Origin("lm.tiny", "tiny.py", "tiny", {"dim": 2})


def test_changes_stand_before_command_code_and_devices() -> None:
    text = about_text(ORIGIN, ENVIRONMENT, [Change("dim", "4", "2")], num_weights=1234)
    title, changes, table = text.partition("dim: 4 -> 2")
    assert title.startswith("## lm.tiny(dim=2)\n")
    assert "Changed from" in title
    assert changes
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", table, re.MULTILINE))
    assert rows == {
        "weights": "1,234",
        "command": "`lingo train '--exp=tiny(dim=2)' '--set=a&#124;b'`",
        "commit": "abc, with uncommitted changes",
        "devices": "1 CPU, 2 GPU",
        "host": "h",
        "versions": "python 3.11, tensorflow 2.21.0",
        "time": "2026-01-02",
    }


def test_what_is_not_known_is_left_out() -> None:
    text = about_text(Origin(), ENVIRONMENT | {"git": None}, [], num_weights=0)
    assert text.startswith("## experiment\n\n**The experiment's defaults**\n")
    assert "commit" not in text


def test_the_page_of_charts_begins_with_loss_and_metric() -> None:
    (value,) = layout_summary("accuracy").value
    assert value.tag == metadata.CONFIG_SUMMARY_TAG
    assert value.metadata.plugin_data.plugin_name == "custom_scalars"
    layout = layout_pb2.Layout.FromString(value.tensor.string_val[0])  # type: ignore[attr-defined]
    charts = {chart.title: chart.multiline.tag[0] for chart in layout.category[0].chart}
    assert [*charts][:2] == ["loss", "accuracy"]
    assert re.search(charts["loss"], "loss/total")
    assert not re.search(charts["loss"], "loss/total/more")
    assert re.search(charts["accuracy"], "eval/accuracy")
