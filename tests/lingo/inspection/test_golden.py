"""Golden texts: an experiment's own settings, and defaults once."""

import lingo
from lingo.config import text
from lingo.inspection import golden


def test_an_experiment_has_what_it_sets_and_passes_down():
    params = lingo.get("lm.source.tiny")
    found = golden.experiment_text(params, params.build()).splitlines()
    resolved = [str(line) for line in text.resolve(params) if line.origin != "default"]
    assert found[: len(resolved)] == resolved
    assert "task.model.norm.dim = 128  # inherited from LanguageModel" in resolved
    assert found[-1].split() == ["total", "824,832"]


def test_defaults_of_all_classes_stand_once():
    names = ("lm.source.tiny", "image.resnet.glyphs")
    lines = golden.defaults_text(map(lingo.get, names)).splitlines()
    assert lines == sorted(set(lines))
    assert "TransformerLayer.ffn = FeedForward" in lines
    assert "FeedForward.activation = 'relu'" in lines
    assert not any(line.startswith("TransformerLayer.ffn.activation") for line in lines)


def test_what_a_default_sets_in_another_class_is_the_default_of_the_outer_one():
    lines = golden.defaults_text([lingo.get("lm.source.tiny")]).splitlines()
    assert "Evaluation.sampling.max_tokens = 100" in lines
    assert "Sampling.temperature = 0.8" in lines
