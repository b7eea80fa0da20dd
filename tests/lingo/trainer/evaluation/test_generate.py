"""Texts from programs: prompts in any number and order, and what is refused."""

import re

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Evaluation, Experiment
from lingo.data.document_input import TextInput
from lingo.data.input import Input
from lingo.data.prompt import Prompt
from lingo.data.record_source import TextFiles
from lingo.decode.beam import Beam
from lingo.decode.sampling import Sampling
from lingo.layers.layer import Layer
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.positions import LearnedPositions
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import initial_state, load_arrays
from lingo.learner.task import Task
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.trainer.evaluation import generate as generate_
from lingo.trainer.evaluation.generate import generate
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

PROMPTS = ["def f", "", "class", "x = ", "ü"]


def params(**fields):
    """Returns a language model of one small layer."""
    layer = TransformerLayer.params(attention=Attention.params(num_heads=1))
    model = LanguageModel.params(dim=8, stack=Stack.params(layer=layer))
    return Experiment.params(
        task=LanguageModeling.params(model=model),
        train_input=TextInput.params(
            batch_size=2, length=8, source=TextFiles.params(pattern="texts/*.txt")
        ),
        optimizer=Sgd.params(learning_rate=0.1, ema_decay=0.9),
        **fields,
    )


def start(params):
    experiment = params.build()
    return experiment, experiment.runtime.start(
        experiment.learner, initial_state(experiment.learner)
    )


@pytest.fixture(scope="module")
def started():
    return start(params())


def sampling(**fields):
    return Sampling.params(**{"max_tokens": 6, "temperature": 1.0, **fields}).build()


def test_texts_do_not_depend_on_what_is_decoded_together(started, monkeypatch):
    settings, seen = sampling(num_samples=2), []
    whole = generate(*started, PROMPTS, settings)
    assert [len(samples) for samples in whole] == [2] * 5
    monkeypatch.setattr(generate_, "BATCH_ROWS", 4)
    parts = generate(*started, PROMPTS, settings, progress=lambda *now: seen.append(now))
    assert [[s.tokens for s in row] for row in parts] == [[s.tokens for s in row] for row in whole]
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_prefixes_are_decoded_together_if_they_are_of_one_length():
    prompts = [Prompt(np.zeros(size, np.int32), is_prefix=True) for size in (2, 4, 2, 4, 2)]
    assert list(generate_._batches(prompts, 2)) == [[0, 2], [4], [1, 3]]
    texts = [prompt._replace(is_prefix=False) for prompt in prompts]
    assert list(generate_._batches(texts, 3)) == [[0, 2, 4], [1, 3]]


def test_another_seed_draws_other_texts(started):
    settings = sampling()
    assert generate(*started, ["a"], settings) == generate(*started, ["a"], settings)
    assert generate(*started, ["a"], settings) != generate(*started, ["a"], settings, seed=1)


def test_what_is_compiled_serves_prompts_of_any_length(started):
    settings, (experiment, program) = sampling(), started
    for prompts in (["a"], ["b", "abc"], ["abcdef"]):
        generate(experiment, program, prompts, settings)
    before = program._decode.experimental_get_tracing_count()
    generate(experiment, program, ["a longer one", "", "z"], settings, seed=5)
    assert program._decode.experimental_get_tracing_count() == before


def test_a_compiled_program_gives_the_same_texts(started):
    settings, compiled = sampling(num_samples=2), start(params(runtime=Local.params(xla=True)))
    for prompts in (["a"], ["abc", "b"]):
        plain, xla = (generate(*program, prompts, settings) for program in (started, compiled))
        assert [[s.tokens for s in row] for row in plain] == [
            [s.tokens for s in row] for row in xla
        ]


def test_the_weights_are_those_of_evaluations():
    texts = []
    for weights in ("trained", "ema"):
        experiment = params(evaluate=Evaluation.params(weights=weights)).build()
        state = load_arrays(initial_state(experiment.learner))
        state.slots["model/embedding/table"]["ema"] = -state.weights["model/embedding/table"]
        program = experiment.runtime.start(experiment.learner, state)
        texts.append(generate(experiment, program, ["a"], sampling(temperature=0.0)))
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (None, "prompts=None is not a list of at least one text"),
        ([], r"prompts=\[\] is not a list of at least one text"),
        ("def", "prompts='def' is not a list of at least one text"),
        (["a", 5], r"prompts\[1\] is 5 \(int\), not a str"),
    ],
)
def test_prompts_that_are_none_are_refused(prompts, message, started):
    with pytest.raises(ParamError, match=message):
        generate(*started, prompts, sampling())


def test_a_prompt_longer_than_the_positions_is_refused_before_training():
    cfg = params(evaluate=Evaluation.params(prompts=["abcd"]))
    cfg.task.model.positions = LearnedPositions.params(max_length=10)
    cfg.evaluate.sampling.max_tokens = 6
    generate_.check_prompts(cfg.build())
    cfg.evaluate.sampling.max_tokens = 7
    message = r"prompt 'abcd', 5 tokens, and max_tokens=7: .* 11 positions.*max_length=10"
    with pytest.raises(ParamError, match=message):
        generate_.check_prompts(cfg.build())


class Backwards(Layer):
    """Adds up the positions that follow, in a layer without a step."""

    def __call__(self, x):
        return tf.cumsum(x, axis=1, reverse=True)


@pytest.mark.parametrize("settings", [sampling(), Beam.params(max_tokens=2, num_beams=2).build()])
def test_a_layer_that_sees_later_positions_is_refused_by_name(settings):
    cfg = params()
    cfg.task.model.stack.layer.attention = Backwards.params()
    with pytest.raises(ParamError, match="model/stack/layers/0/attention: a position depends on l"):
        generate(*start(cfg), ["abc", "a"], settings)


class Numbers(Input):
    """An input without texts."""

    def offers(self):
        return {"vocab_size": 5}


class Counting(Task):
    """A task that continues nothing."""

    vocab_size: int  # of what is counted


def test_an_input_without_texts_has_nothing_to_continue():
    cfg = params(evaluate=Evaluation.params(prompts=["a"]))
    cfg.train_input = Numbers.params(batch_size=1)
    with pytest.raises(ParamError, match=r"train_input, a Numbers, has no tokenizer"):
        generate_.check_prompts(cfg.build())


def test_a_task_that_does_not_decode_says_so():
    cfg = params(evaluate=Evaluation.params(prompts=["a"])).set(task=Counting)
    with pytest.raises(ParamError, match="Counting continues no text"):
        generate_.check_prompts(cfg.build())


# ---- a run, and what is loaded from it ---------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate")
    (folder / "a.txt").write_text("def f(x):\n    return x\n" * 9)
    cfg = params(evaluate=Evaluation.params(prompts=["def ", "x"], every_steps=1), max_steps=2)
    cfg.train_input.source.pattern = f"{folder}/*.txt"
    cfg.evaluate.sampling.max_tokens = 5
    lingo.train(cfg, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def model(run):
    return lingo.load(run)


def test_every_evaluation_leaves_its_samples_as_a_text(run, model):
    events = EventAccumulator(str(run / "train")).Reload().Tensors("samples")
    assert [event.step for event in events] == [1, 2]
    (last,) = events[-1].tensor_proto.string_val
    blocks = [part.strip("\n") for part in re.split(r"\n*---\n*|\*\*[\w ]+\*\*", last.decode())]
    found = [block.removeprefix("    ") for block in blocks if block]
    texts = model.generate(["def ", "x"], max_tokens=5)
    escaped = ["".join(c if c.isprintable() else repr(c)[1:-1] for c in text) for text in texts]
    assert found == ["def ", escaped[0], "x", escaped[1]]


def test_a_text_for_a_text_and_a_list_for_a_list(model):
    settings = {"max_tokens": 5, "temperature": 1.0}
    one = model.generate("def ", **settings)
    assert isinstance(one, str)
    assert model.generate(["def ", "x"], **settings)[0] == one
    samples = model.generate("def ", num_samples=2, **settings)
    assert (len(samples), samples[0]) == (2, one)
    assert model.generate(["def "], num_samples=2, **settings) == [samples]


def test_beams_find_a_text_as_likely_as_greedy_decoding(model):
    greedy, beam = Sampling.params(temperature=0.0), Beam.params(num_beams=4, num_samples=2)
    ((first,),), ((best, second),) = (
        model.decode(["def "], params.set(max_tokens=5)) for params in (greedy, beam)
    )
    assert first.score - 1e-5 <= sum(best.log_probs) == pytest.approx(best.score, abs=1e-5)
    assert second.score <= best.score
    texts = [best.text, second.text]
    assert model.generate("def ", max_tokens=5, num_beams=4, num_samples=2) == texts
    assert model.generate("def ", max_tokens=5, num_beams=1) == first.text


def test_a_search_and_a_sampling_of_equal_settings_are_two(model):
    settings = {"max_tokens": 3, "num_samples": 1}
    model.decode(["a"], Sampling.params(**settings))
    model.decode(["a"], Beam.params(**settings))
    assert {type(decoding) for decoding in model._decodings.values()} >= {Beam, Sampling}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": np.float32(0.5)}, r"Sampling\.temperature takes float"),
        ({"max_tokens": True}, r"Decoding\.max_tokens takes int"),
        ({"top_p": 2.0}, r"top_p=2\.0 is not in"),
        ({"seed": 1.5}, r"seed=1\.5 \(float\) is not an int"),
        ({"num_beams": 2, "num_samples": 3}, "num_samples=3 is more than num_beams=2"),
        ({"num_beams": 2, "temperature": 0.5}, r"temperature=0\.5 says how tokens are drawn"),
        ({"length_penalty": 0.6}, "is for beam search: set num_beams"),
    ],
)
def test_settings_that_are_none_are_refused(settings, message, model):
    with pytest.raises(ParamError, match=message):
        model.generate("a", **settings)


def test_a_batch_made_by_hand_needs_only_what_the_loss_reads(model):
    batch = model.experiment.train_input.batch(0)
    read = ("tokens", "targets", "segments", "positions", "weights")
    assert {"bytes", "rows", "example_id"} <= batch.keys() - set(read)
    assert model.loss({name: batch[name] for name in read}) == model.loss(batch)


def test_a_batch_that_is_none_is_one_sentence(model):
    batch = model.experiment.train_input.batch(0)
    assert np.isfinite(model.loss(batch))
    with pytest.raises(ParamError, match=r"the batch has no 'segments'.*shows what a batch is"):
        model.loss({"tokens": batch["tokens"]})
    with pytest.raises(ParamError, match=r"dict of arrays, got list"):
        model.loss([batch])
    with pytest.raises(ParamError, match=r"'tokens' has shape \(2,\), but needs 2 axes"):
        model.loss({**batch, "tokens": batch["tokens"][:, 0]})
