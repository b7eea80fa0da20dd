"""Answers are the same however they are decoded together, and scores are of all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal

import pytest
import sacrebleu
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import lingo
from lingo.cli.main import main
from lingo.config.base.errors import MissingPackage
from lingo.config.params import ParamError
from lingo.contract import Answers
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from lingo.decode.sampling import Sampling
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.mask import Prefix
from lingo.layers.sequence.positions import LearnedPositions
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.metrics import text as text_module
from lingo.runtimes.local import LocalProgram
from lingo.trainer.evaluation import generate as generate_module
from lingo.trainer.evaluation.answers import check_answers, decode_answers, score_answers
from lingo.trainer.evaluation.evaluate import evaluate_all, trace_evaluations
from lingo.trainer.evaluation.generate import generate
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tests.lingo.runtimes.child import printed
from tests.lingo.trainer.evaluation.paired import PAIRS, experiment, start, write_pairs

STEPS = 90
pytestmark = pytest.mark.xdist_group("answers")  # the model is trained once
RANDOM = Sampling.params(temperature=1.0, max_tokens=6)


def trained_params(file):
    cfg = experiment(file, max_steps=STEPS)
    cfg.evaluate.set(every_steps=STEPS - 1, metric="same/bleu", goal="max")
    return cfg


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def folder(file):
    """The folder of the pairs, with a run of them that is evaluated twice."""
    lingo.train(trained_params(file), file.parent / "run")
    return file.parent


@pytest.fixture(scope="module")
def started(file):
    return start(experiment(file))


def language_model():
    layer = TransformerLayer.params(attention=Attention.params(num_heads=1, mask=Prefix))
    model = LanguageModel.params(dim=8, stack=Stack.params(layer=layer))
    return LanguageModeling.params(model=model)


def answers_of(started, **fields):
    """Decodes the answers to all pairs with other settings."""
    built, program = started
    built.evaluate.answers = Answers.params(**fields).build()
    return decode_answers(built, program, built.eval_inputs["same"])


def test_every_pair_is_answered_once(started):
    found = answers_of(started, decoding=RANDOM)
    assert sorted((source, target) for source, target, _ in found) == sorted(PAIRS)


def test_answers_are_those_of_generate_and_do_not_depend_on_batches(file, started, monkeypatch):
    found, seen = answers_of(started, decoding=RANDOM), []
    texts = generate(*started, [one.source for one in found], RANDOM.build())
    assert [one.text for one in found] == [first.text for (first, *_) in texts]
    monkeypatch.setattr(generate_module, "BATCH_ROWS", 4)
    built, program = started
    other = experiment(file).eval_inputs["same"].set(batch_size=3, packing="bins", seed=5).build()
    parts = decode_answers(built, program, other, progress=lambda *now: seen.append(now))
    assert parts == found
    assert seen == [(4, 11), (8, 11), (11, 11)]


def test_fewer_examples_are_the_first_of_more_and_a_seed_draws_the_same_again(started):
    found = answers_of(started, decoding=RANDOM)
    assert answers_of(started, decoding=RANDOM, max_examples=5) == found[:5]
    assert answers_of(started, decoding=RANDOM, max_examples=None) == found


def test_a_source_that_is_too_long_is_answered_as_it_is_evaluated_and_scored_by_all_of_it(file):
    cfg = experiment(file)
    cfg.eval_inputs["same"].set(source_length=4, target_length=4)
    built, program = start(cfg)
    found = {one.source: one for one in decode_answers(built, program, built.eval_inputs["same"])}
    cut = [found[f"the number {i}"] for i in range(7)]
    assert len({one.text for one in cut}) == 1, "the model sees `the` alone"
    assert [one.target for one in cut] == [f"die Zahl {i}" for i in range(7)]


def test_scores_are_those_of_sacrebleu_and_replace_the_metric_of_the_task(started):
    built, program = started
    found = answers_of(started, decoding=RANDOM)
    texts, targets = [one.text for one in found], [one.target for one in found]
    expected = {
        "bleu": sacrebleu.corpus_bleu(texts, [targets]).score,
        "chrf": sacrebleu.corpus_chrf(texts, [targets]).score,
        "exact_match": 0.0,
    }
    assert score_answers(built, found) == expected
    seen = []

    @contextlib.contextmanager
    def work(what):
        yield lambda done, total: seen.append((what, done, total))

    ((name, metrics, _, shown),) = evaluate_all(built, program, show_progress=work)
    assert seen == [("answering same", 11, 11)]
    assert (name, shown) == ("same", found[:3])
    assert metrics.items() >= expected.items()
    assert trace_evaluations(built)["same"].keys() == metrics.keys()
    assert answers_of(started, measures=["chrf"], num_shown=0)
    ((_, metrics, _, shown),) = evaluate_all(built, program)
    assert (shown, "bleu" in metrics, "chrf" in metrics) == ([], False, True)


def test_decoding_can_be_left_between_two_batches(started, monkeypatch):
    def first_two(batches):
        for i in batches:
            if i == 2:
                raise InterruptedError
            yield i

    monkeypatch.setattr(generate_module, "BATCH_ROWS", 4)
    built, program = started
    with pytest.raises(InterruptedError):
        decode_answers(built, program, built.eval_inputs["same"], between=first_two)


def test_a_decoder_alone_answers_pairs_too(file):
    cfg = experiment(file, task=language_model())
    for data in (cfg.train_input, cfg.eval_inputs["same"]):
        data.form = "decoder"
    built, program = start(cfg)
    found = decode_answers(built, program, built.eval_inputs["same"])
    prompts = [one.source for one in found]
    texts = generate(built, program, prompts, built.evaluate.answers.decoding)
    assert [one.text for one in found] == [first.text for (first, *_) in texts]


def test_on_one_device_on_replicas_and_on_a_mesh_the_answers_are_equal(file):
    found = json.loads(printed("-m", "tests.lingo.trainer.evaluation.paired", str(file)))
    for kind in ("sampling", "beam"):
        local, replicated, mesh = (found[f"{n} {kind}"] for n in ("local", "replicated", "mesh"))
        assert len(local[0]) == len(PAIRS)
        assert replicated == local
        assert mesh == local


# ---- a run -------------------------------------------------------------------------------------


def evaluations(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [
        {tag: value for tag, value in row.items() if tag == "step" or tag.startswith("eval/")}
        for row in map(json.loads, lines)
        if "eval/bleu" in row
    ]


def test_greedy_answers_match_as_often_as_the_task_counts_with_true_tokens(folder):
    model = lingo.load(folder / "run")
    match = evaluations(folder / "run")[-1]["eval/exact_match"]
    model.experiment.evaluate.answers = None
    assert model.evaluate()["same"]["exact_match"] == match
    assert match > 0


@pytest.mark.usefixtures("once_compiled")
def test_a_signal_ends_decoding_between_batches_and_the_resumed_run_has_the_same_scores(
    folder, file, run, monkeypatch
):
    decode, calls = LocalProgram.decode, []

    def terminated(self, *arguments, **options):
        calls.append(1)
        os.kill(os.getpid(), signal.SIGTERM)
        return decode(self, *arguments, **options)

    monkeypatch.setattr(generate_module, "BATCH_ROWS", 4)
    with monkeypatch.context() as patch:
        patch.setattr(LocalProgram, "decode", terminated)
        outcome = run(trained_params(file), folder / "stopped")
    assert (outcome.step, outcome.signal, len(calls)) == (STEPS - 1, signal.SIGTERM, 1)
    run(trained_params(file), folder / "stopped")
    assert evaluations(folder / "stopped") == evaluations(folder / "run")
    assert [row["step"] for row in evaluations(folder / "run")] == [STEPS - 1, STEPS]


def test_an_evaluation_by_itself_prints_the_scores_and_answers(folder, capsys):
    last = evaluations(folder / "run")[-1]
    assert main(["eval", f"--run={folder / 'run'}"]) == 0
    shown = capsys.readouterr()
    first, *answers = shown.out.splitlines()
    assert "answers: Sampling(max_tokens=12, num_samples=1, temperature=0.0, " in shown.err
    assert "answers: BLEU|nrefs:1|case:mixed|" in shown.err
    assert f"bleu={last['eval/bleu']:.6g}  chrf={last['eval/chrf']:.6g}" in first
    assert len(answers) == 3
    assert all(line.startswith(f"same  step={STEPS}  answer  ") for line in answers)


def test_answers_are_a_text_of_tensorboard_with_the_signature_below(folder):
    events = EventAccumulator(str(folder / "run/eval_same")).Reload().Tensors("answers")
    assert [event.step for event in events] == [STEPS - 1, STEPS]
    (text,) = events[-1].tensor_proto.string_val
    source, target, answer = decode_answers(*_loaded(folder))[0]
    shown = f"**Source**\n\n    {source}\n\n**target**\n\n    {target}\n\n**answer**\n\n"
    assert text.decode().startswith(shown + f"    {answer}\n")
    assert "    BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in text.decode()


def _loaded(folder):
    model = lingo.load(folder / "run")
    return model.experiment, model._program, model.experiment.eval_inputs["same"]


# ---- what is refused -----------------------------------------------------------------------------


def test_an_experiment_without_pairs_is_refused(file):
    data = TextInput.params(batch_size=2, length=8, source=TextFiles.params(pattern=str(file)))
    cfg = experiment(file, task=language_model(), train_input=data)
    cfg.eval_inputs = {"text": data.copy().set(repeat=False)}
    with pytest.raises(ParamError, match=r"needs an evaluation input .*'text' is a TextInput"):
        cfg.build()
    with pytest.raises(ParamError, match="eval_inputs is empty"):
        cfg.set(eval_inputs={}).build()
    with pytest.raises(ParamError, match="TextInput has no `text_pairs`"):
        data.build().text_pairs(1)


def test_answers_without_measures_are_refused():
    with pytest.raises(
        ParamError, match="measures is empty: name some of bleu, bleu_uncased, chrf, exact_match"
    ):
        Answers.params(measures=[]).build()


def test_more_positions_than_the_model_has_are_refused_before_training(file):
    cfg = experiment(file)
    cfg.task.model.positions = LearnedPositions.params(max_length=16)
    check_answers(cfg.build())
    cfg.evaluate.answers.decoding.max_tokens = 17
    message = "the longest source of 'same' and max_tokens=17: .* 17 positions.*max_length=16"
    with pytest.raises(ParamError, match=message):
        check_answers(cfg.build())


def test_without_sacrebleu_no_run_begins(file, tmp_path, monkeypatch):
    def missing():
        raise MissingPackage("pip install 'lingo-tf[text]'")

    monkeypatch.setattr(text_module, "import_sacrebleu", missing)
    with pytest.raises(MissingPackage):
        lingo.train(experiment(file, max_steps=1), tmp_path / "run")
    assert not (tmp_path / "run/config.json").exists()
