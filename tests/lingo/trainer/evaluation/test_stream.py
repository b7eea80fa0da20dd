"""A prompt's text in pieces: the text of `generate`, which closing stops at the next token."""

from __future__ import annotations

import pytest

from lingo.contract import Experiment
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from lingo.decode.beam import Beam
from lingo.decode.sampling import Sampling
from lingo.decode.stream import StreamedSampling
from lingo.layers import Attention, Stack, TransformerLayer
from lingo.learner.state import initial_state
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.trainer.evaluation.generate import generate
from lingo.trainer.evaluation.stream import stream_prompt
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

SETTINGS = {"max_tokens": 40, "temperature": 1.0}


def start(**fields):
    layer = TransformerLayer.params(attention=Attention.params(num_heads=1))
    model = LanguageModel.params(dim=8, stack=Stack.params(layer=layer))
    experiment = Experiment.params(
        task=LanguageModeling.params(model=model),
        train_input=TextInput.params(
            batch_size=2, length=8, source=TextFiles.params(pattern="texts/*.txt")
        ),
        optimizer=Sgd.params(learning_rate=0.1),
        **fields,
    ).build()
    state = initial_state(experiment.learner)
    return experiment, experiment.runtime.start(experiment.learner, state)


@pytest.fixture(scope="module")
def started():
    return start()


def pieces_of(stream):
    """Returns the pieces and the result of a generator."""
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


@pytest.mark.parametrize("num_samples", [1, 2])
def test_pieces_are_those_of_the_text_and_characters_stay_whole(started, num_samples):
    experiment, program = started
    assert program.can_stream
    settings = SETTINGS | {"num_samples": num_samples}
    decoding = StreamedSampling.params(**settings).build()
    for seed in range(4):
        prompt = experiment.train_input.prompt("def ü")
        found = stream_prompt(experiment, program, prompt, decoding, seed=seed)
        pieces, texts = pieces_of(found)
        expected = generate(
            experiment, program, ["def ü"], Sampling.params(**settings).build(), seed=seed
        )
        assert [texts] == expected
        assert "".join(pieces) == texts[0].text
        assert len(pieces) >= len(texts[0].tokens)


def test_closing_a_stream_stops_its_decoding(started, monkeypatch):
    experiment, program = started
    decoding, prompt = StreamedSampling.params(**SETTINGS).build(), "def "
    told, tell = [], StreamedSampling._tell

    def count(self, number, token, is_done):
        told.append(token)
        return tell(self, number, token, is_done)

    monkeypatch.setattr(StreamedSampling, "_tell", count)
    stream = stream_prompt(
        experiment, program, experiment.train_input.prompt(prompt), decoding, seed=1
    )
    next(stream)
    stream.close()
    num = len(told)  # it has been told some tokens before it was closed
    assert decoding._listeners == {}
    pieces_of(
        stream_prompt(experiment, program, experiment.train_input.prompt(prompt), decoding, seed=1)
    )
    assert num < SETTINGS["max_tokens"] <= len(told) - num


def test_what_cannot_call_python_gives_the_whole_text_in_one_piece(started):
    for (experiment, program), decoding in [
        (start(runtime=Local.params(xla=True)), Sampling.params(max_tokens=5)),
        (started, Beam.params(max_tokens=5, num_beams=2)),
    ]:
        prompt = experiment.train_input.prompt("x")
        found = stream_prompt(experiment, program, prompt, decoding.build(), seed=0)
        (piece,), texts = pieces_of(found)
        assert [texts] == generate(experiment, program, ["x"], decoding.build(), seed=0)
        assert piece == texts[0].text
        assert program.can_stream == (decoding.cls is Beam)
