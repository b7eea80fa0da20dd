"""The step is a sum: however a batch is split, the same update comes out."""

import importlib
import pathlib
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params, interface
from lingo.layers import BatchNorm, Chain
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.layers.vision.conv import Conv2D, Conv3D
from lingo.learner.state import Learner, TrainState, initial_state, load_arrays
from lingo.learner.step import batch_sums, evaluate_batch, train_step
from lingo.learner.task import Task
from lingo.learner.update import join_reports, update
from lingo.models.detection.mask_rcnn import MaskRcnn
from lingo.models.detection.pyramid import Backbone
from lingo.models.detection.ssd import Ssd
from lingo.models.speech.conformer import ConformerEncoder
from lingo.models.speech.las import LasDecoder
from lingo.models.speech.transducer import PredictionNetwork
from lingo.ops.speech.spec_augment import SpecAugment
from lingo.optim.adam import Adam, AdamW
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.optimizer import Move, Slot, Update, Weight
from lingo.optim.run_length import KnownLength
from lingo.optim.schedule import ConstantRate
from lingo.optim.sgd import Sgd
from tasks.asr.attention import AttentionRecognition
from tasks.asr.ctc import CtcRecognition
from tasks.asr.transducer import TransducerRecognition
from tasks.bert.classification import TextClassification
from tasks.bert.question_task import QuestionAnswering
from tasks.bert.task import BertPretraining
from tasks.click.model import Dlrm, Mlp
from tasks.click.task import ClickPrediction
from tasks.detection.instance_segmentation import InstanceSegmentation
from tasks.detection.task import ObjectDetection
from tasks.gan.task import ImageGan
from tasks.image.segmentation import Segmentation
from tasks.image.task import ImageClassification
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tasks.seq2seq.task import Distillation, SequenceToSequence
from tasks.table.task import TableModel, TablePrediction

B, T, V = 8, 5, 11
C, K = 2, 4  # channels of images, classes


def language_modeling() -> tuple[Params, dict[str, np.ndarray]]:
    layer = TransformerLayer.params(dropout_rate=0.3, attention=Attention.params(num_heads=2))
    stack = Stack.params(layer=layer, num_layers=2)
    task = LanguageModeling.params(vocab_size=V, model=LanguageModel.params(dim=4, stack=stack))
    draw = np.random.RandomState(0)
    segments = (np.arange(T) < draw.randint(1, T + 1, (B, 1))).astype("i")  # uneven padding
    weights = np.ones(B, "f")
    weights[3] = 0.0
    batch = {
        "tokens": draw.randint(0, V, (B, T)).astype("i"),
        "targets": draw.randint(0, V, (B, T)).astype("i"),
        "segments": segments,
        "positions": np.tile(np.arange(T, dtype="i"), (B, 1)),
        "weights": weights,
    }
    return task, batch


def bert_pretraining() -> tuple[Params, dict[str, np.ndarray]]:
    _, batch = language_modeling()
    task = BertPretraining.params(vocab_size=V)
    task.model.dim = 4
    task.all(Attention).set(num_heads=2)
    draw = np.random.RandomState(0)
    batch |= {
        "types": draw.randint(0, 2, (B, T)).astype("i"),
        "masked_positions": draw.randint(0, T, (B, 2)).astype("i"),
        "masked_ids": draw.randint(0, V, (B, 2)).astype("i"),
        "masked_weights": (draw.uniform(size=(B, 2)) < 0.7).astype("f"),  # uneven parts
        "is_random": draw.randint(0, 2, B).astype("i"),
    }
    return task, batch


def question_answering() -> tuple[Params, dict[str, np.ndarray]]:
    _, batch = bert_pretraining()
    task = QuestionAnswering.params(vocab_size=V)
    task.model.dim = 4
    task.all(Attention).set(num_heads=2)
    ends = {"starts": batch["masked_positions"][:, 0], "ends": batch["masked_positions"][:, 1]}
    return task, batch | ends


def text_classification() -> tuple[Params, dict[str, np.ndarray]]:
    _, batch = bert_pretraining()
    task = TextClassification.params(vocab_size=V, class_names=("a", "b"))
    task.model.dim = 4
    task.all(Attention).set(num_heads=2)
    return task, batch | {"labels": batch["is_random"]}


def sequence_to_sequence() -> tuple[Params, dict[str, np.ndarray]]:
    _, batch = language_modeling()
    task = SequenceToSequence.params(vocab_size=V)
    task.model.set(dim=4, dropout_rate=0.3)
    task.all(DotProductAttention).set(num_heads=2)
    sources = {f"source_{k}": batch[k][:, ::-1] for k in ("tokens", "segments", "positions")}
    return task, batch | sources


def distillation() -> tuple[Params, dict[str, np.ndarray]]:
    student, batch = sequence_to_sequence()
    teacher = student.model.copy().set(dim=6)
    return Distillation.params(vocab_size=V, model=student.model, teacher=teacher), batch


class Mean(Layer):
    """Logits from the mean of all pixels."""

    linear: Linear = Linear.params(use_bias=True)

    def setup(self) -> None:
        self.linear = self.p.linear.build(dim=C, output_dim=K)

    def __call__(self, x: Any) -> Any:
        return self.linear(tf.reduce_mean(x, axis=[1, 2]))

    def output_shape(self, shape: Any) -> tuple[int, ...]:
        return (shape[0], K)


def image_classification() -> tuple[Params, dict[str, np.ndarray]]:
    task = ImageClassification.params(model=Mean, num_classes=K, image_shape=(3, 3, C))
    draw = np.random.RandomState(0)
    batch = {
        "images": draw.normal(size=(B, 3, 3, C)).astype("f"),
        "labels": draw.randint(0, K, B).astype("i"),
        "weights": np.array([1, 1, 0, 1, 1, 1, 0, 1], "f"),
    }
    return task.set(label_smoothing=0.1, flip_rate=0.5), batch


def object_detection() -> tuple[Params, dict[str, np.ndarray]]:
    model = Ssd.params(
        trunk=Conv2D.params(dim=C, output_dim=3, stride=2), scales=(3.0, 5.0), ratios=((2.0,),)
    )
    task = ObjectDetection.params(model=model, num_classes=K, image_shape=(6, 6, C))
    draw = np.random.RandomState(0)
    corner = draw.uniform(0, 0.5, (B, 2, 2))
    batch = {
        "images": draw.normal(size=(B, 6, 6, C)).astype("f"),
        "boxes": np.concatenate([corner, corner + 0.5], -1).astype("f"),
        "box_labels": draw.randint(0, K + 1, (B, 2)).astype("i"),
        "is_crowd": draw.uniform(size=(B, 2)) < 0.2,
        "weights": np.array([1, 1, 0, 1, 1, 1, 0, 1], "f"),
    }
    return task, batch


def instance_segmentation() -> tuple[Params, dict[str, np.ndarray]]:
    trunk = Backbone.params(layers=[Conv2D.params(dim=C, output_dim=3)], first_level=0)
    model = MaskRcnn.params(trunk=trunk, anchor_scale=2.0)
    model.pyramid.set(output_dim=3, num_extra=1)
    model.region_head.hidden_dim = 3
    model.box_head.set(size=2, hidden_dim=4)
    model.mask_head.set(size=2, hidden_dim=3, num_convs=1)
    _, batch = object_detection()
    masks = np.random.RandomState(0).randint(0, 2, (B, 2, 4, 4)).astype(np.uint8)
    task = InstanceSegmentation.params(
        model=model,
        num_classes=K,
        image_shape=(6, 6, C),
        num_anchors=8,
        max_per_level=6,
        num_proposals=6,
        num_regions=8,
    )
    return task, batch | {"masks": masks}


def segmentation() -> tuple[Params, dict[str, np.ndarray]]:
    model = Conv3D.params(dim=C, output_dim=K)
    task = Segmentation.params(model=model, num_classes=K, volume_shape=(2, 3, 3, C))
    draw = np.random.RandomState(0)
    batch = {
        "images": draw.normal(size=(B, 2, 3, 3, C)).astype("f"),
        "labels": draw.randint(0, K, (B, 2, 3, 3)).astype("i"),
        "weights": np.array([1, 1, 0, 1, 1, 1, 0, 1], "f"),
    }
    return task, batch


def click_prediction() -> tuple[Params, dict[str, np.ndarray]]:
    model = Dlrm.params(bottom=Mlp.params(output_dims=(4,)), top=Mlp.params(output_dims=(1,)))
    task = ClickPrediction.params(model=model, num_numbers=2, vocab_sizes=(3, 5))
    draw = np.random.RandomState(0)
    batch = {
        "numbers": draw.normal(size=(B, 2)).astype("f"),
        "categories": draw.randint(0, 3, (B, 2)).astype("i"),
        "labels": draw.randint(0, 2, B).astype("i"),
        "weights": np.array([1, 1, 0, 1, 1, 1, 0, 1], "f"),
    }
    return task, batch


def image_gan() -> tuple[Params, dict[str, np.ndarray]]:
    task = ImageGan.params(image_shape=(4, 4, 1), latent_dim=3, form="wasserstein")
    task.generator.num_filters = task.discriminator.num_filters = 2
    images = np.random.RandomState(0).uniform(size=(B, 4, 4, 1)).astype("f")
    return task, {"images": images, "weights": np.array([1, 1, 0, 1, 1, 1, 0, 1], "f")}


def table_prediction() -> tuple[Params, dict[str, np.ndarray]]:
    model = TableModel.params(hidden=Mlp.params(output_dims=(4,)))
    task = TablePrediction.params(model=model, num_numbers=2, category_sizes=(3, 5))
    draw = np.random.RandomState(0)
    batch = {
        "numbers": draw.normal(size=(B, 2)).astype("f"),
        "categories": draw.randint(0, 3, (B, 2, 2)).astype("i"),
        "labels": draw.randint(0, K, B).astype("i"),
        "weights": np.array([1, 1, 0, 1, 1, 1, 0, 1], "f"),
    }
    return task.set(class_names=tuple("abcdefgh"[:K])), batch


def recognition(task: Params) -> tuple[Params, dict[str, np.ndarray]]:
    encoder = ConformerEncoder.params(output_dim=4, dropout_rate=0.3)
    encoder.stack.num_layers = 1
    encoder.all(Attention).set(num_heads=2)
    encoder.all(BatchNorm).set(statistics_over=1)  # parts of any size
    augment = SpecAugment.params(freq_mask_max_bins=3, time_mask_max_frames=4)
    task.set(encoder=encoder, feature_dim=6, vocab_size=V, max_labels=4)
    draw = np.random.RandomState(0)
    batch = {
        "features": draw.normal(size=(B, 12, 6)).astype("f"),
        "num_frames": np.array([12, 9, 0, 12, 5, 12, 0, 11], "i"),
        "labels": draw.randint(1, V, (B, 4)).astype("i"),
        "num_labels": np.array([2, 1, 0, 3, 4, 1, 0, 2], "i"),  # 4 do not fit
        "weights": np.array([1, 1, 0, 1, 1, 1, 0, 1], "f"),
    }
    return task.set(spec_augment=augment), batch


def attention_recognition() -> tuple[Params, dict[str, np.ndarray]]:
    return recognition(AttentionRecognition.params(decoder=LasDecoder.params(dim=3, hidden_dim=4)))


def ctc_recognition() -> tuple[Params, dict[str, np.ndarray]]:
    return recognition(CtcRecognition.params())


def transducer_recognition() -> tuple[Params, dict[str, np.ndarray]]:
    task = TransducerRecognition.params(
        prediction=PredictionNetwork.params(dim=3, hidden_dim=4), num_beams=3, max_symbols=2
    )
    task.joint.hidden_dim = 4
    return recognition(task)


TASKS = {
    AttentionRecognition: attention_recognition,
    BertPretraining: bert_pretraining,
    ClickPrediction: click_prediction,
    CtcRecognition: ctc_recognition,
    Distillation: distillation,
    ImageClassification: image_classification,
    ImageGan: image_gan,
    InstanceSegmentation: instance_segmentation,
    LanguageModeling: language_modeling,
    ObjectDetection: object_detection,
    QuestionAnswering: question_answering,
    Segmentation: segmentation,
    SequenceToSequence: sequence_to_sequence,
    TablePrediction: table_prediction,
    TextClassification: text_classification,
    TransducerRecognition: transducer_recognition,
}


def with_rows(batch: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    batch = batch | {"rows": np.arange(len(batch["weights"]), dtype="i")}
    return {k: tf.constant(v) for k, v in batch.items()}


def learner(task: Params, **kwargs: Any) -> Learner:
    # a large epsilon: else rounding decides where a gradient that is almost 0 leads
    adam = AdamW.params(learning_rate=0.1, epsilon=1e-3)
    frozen = {"teacher/.*": Frozen} if issubclass(task.cls, Distillation) else {}
    groups = ByPath.params(groups=frozen | {"(?!teacher/).*": adam}, max_grad_norm=0.5)
    optimizer = kwargs.pop("optimizer", groups if frozen else adam.set(max_grad_norm=0.5))
    return Learner(task.build(), optimizer.build(), seed=1, **kwargs)


def begun(**kwargs: Any) -> tuple[Learner, TrainState, dict[str, np.ndarray]]:
    """Returns the learner of a language model, its first state, and a batch without rows."""
    task, batch = language_modeling()
    one = learner(task, **kwargs)
    return one, tensors(initial_state(one)), batch


def tensors(state: TrainState) -> TrainState:
    return tf.nest.map_structure(tf.constant, state)


def step_in_parts(learner, state, batch, sizes):
    """A plain runtime of n replicas: splits the batch, runs `local` on each part, and adds."""
    ends = np.cumsum(sizes)
    parts = [{k: v[e - n : e] for k, v in batch.items()} for n, e in zip(sizes, ends, strict=True)]
    totals = added([learner.task.loss_denominators(part) for part in parts])
    after, reports = state, []
    for own in learner.in_turn():
        before = after._replace(step=state.step)
        sums = added([batch_sums(own, before, part, totals) for part in parts])
        after, report = update(own, before, sums)
        reports.append(report)
    return after, join_reports(reports)


def added(values: list[Any]) -> Any:
    return tf.nest.map_structure(lambda *v: tf.add_n(v), *values)


def assert_same_step(a: tuple[TrainState, Any], b: tuple[TrainState, Any], tol: float) -> None:
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tol, atol=tol),
        (a[0], a[1]["scalars"]),
        (b[0], b[1]["scalars"]),
    )


def assert_unchanged(after: TrainState, before: TrainState) -> None:
    """Checks that of a state only the step has changed."""
    assert after.step == before.step + 1
    tf.nest.map_structure(np.testing.assert_array_equal, after[1:], before[1:])


def task_classes(cls: type[Task] = Task) -> set[type[Task]]:
    found = {cls} if cls.__module__.startswith("tasks.") and interface(cls) is not cls else set()
    return found.union(*(task_classes(sub) for sub in cls.__subclasses__()))


def test_every_task_has_a_case():
    for file in sorted((pathlib.Path(__file__).parents[3] / "tasks").glob("*/*.py")):
        importlib.import_module(f"tasks.{file.parent.name}.{file.stem}")
    assert task_classes() == set(TASKS)


@pytest.mark.parametrize("make", TASKS.values(), ids=[c.__name__ for c in TASKS])
@pytest.mark.parametrize("sizes", [[1, 7], [3, 1, 4], [1] * 8])
def test_sums_over_uneven_parts_equal_the_whole_batch(make, sizes):
    task, batch = make()
    one = learner(task)
    state, batch = tensors(initial_state(one)), with_rows(batch)
    assert_same_step(
        train_step(one, state, batch), step_in_parts(one, state, batch, sizes), tol=1e-5
    )


@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_accumulation_steps_change_nothing(num_parts):
    one, state, batch = begun()
    many, batch = one._replace(accumulation_steps=num_parts), with_rows(batch)
    accumulated = tf.function(lambda s, b: train_step(many, s, b), autograph=False)(state, batch)
    assert_same_step(train_step(one, state, batch), accumulated, tol=1e-5)


@pytest.mark.parametrize("missing", ["images", "weights"])
def test_an_array_that_the_batch_lacks_is_named_with_those_that_it_has(missing):
    task, batch = image_classification()
    one = learner(task)
    state = tf.nest.map_structure(tf.constant, load_arrays(initial_state(one)))
    wrong = with_rows(batch)
    wrong["image"] = wrong.pop(missing)
    said = rf"the batch has no {missing!r}, but .*image\..* shows what a batch is"
    with pytest.raises(ParamError, match=said):
        train_step(one, state, wrong)
    with pytest.raises(ParamError, match=said):
        evaluate_batch(one.task, state.weights, state.state, wrong)


def test_a_batch_that_does_not_split_into_parts_is_refused():
    three, state, batch = begun(accumulation_steps=3)
    with pytest.raises(ValueError, match=r"8 examples .* accumulation_steps=3"):
        train_step(three, state, with_rows(batch))


def test_padding_and_examples_of_weight_zero_count_nowhere():
    one, state, batch = begun()
    other = batch | {"targets": batch["targets"].copy(), "tokens": batch["tokens"].copy()}
    other["targets"][3], other["targets"][batch["segments"] == 0] = 0, 0
    other["tokens"][3] = 0
    assert_same_step(
        train_step(one, state, with_rows(batch)), train_step(one, state, with_rows(other)), tol=0
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        Sgd.params(learning_rate=3e38),
        Sgd.params(learning_rate=3e38, momentum=0.9, accumulate="updates", ema_decay=0.9),
    ],
    ids=["weights", "slots"],
)
def test_an_update_that_would_not_be_finite_is_left_out(optimizer):
    one, state, batch = begun(optimizer=optimizer)
    batch = with_rows(batch)
    state = state._replace(weights={k: 1e3 * v for k, v in state.weights.items()})
    compiled = tf.function(lambda s, b: train_step(one, s, b), autograph=False)
    for after, report in (train_step(one, state, batch), compiled(state, batch)):
        assert np.isfinite(report["scalars"]["loss/total"])
        assert np.isfinite(report["scalars"]["learner/grad_norm"])
        assert report["first_non_finite"] >= 0
        assert_unchanged(after, state)


def test_a_division_of_0_by_0_is_left_out():
    one, state, batch = begun(optimizer=Adam.params(learning_rate=0.1, epsilon=0.0))
    nothing = batch | {"weights": np.zeros(B, "f")}  # no example counts: every gradient is 0
    after, report = train_step(one, state, with_rows(nothing))
    assert report["scalars"]["learner/grad_norm"] == 0
    assert report["first_non_finite"] >= 0
    assert_unchanged(after, state)


class Spilling(Sgd):
    """Changes no weight, and keeps what float32 cannot hold."""

    def slots(self, weight: Weight) -> dict[str, Slot]:
        return {"spilt": Slot(weight.stack_shape, 1e38, weight.names)}

    def move(self, update: Update) -> Move:
        return Move(0.0 * update.gradient, {"spilt": 10.0 * update.slots["spilt"]})


def test_a_slot_that_would_not_be_finite_is_enough():
    one, state, batch = begun(optimizer=Spilling.params(learning_rate=0.1))
    after, report = train_step(one, state, with_rows(batch))
    assert report["first_non_finite"] >= 0
    assert all(slots["spilt"] == np.float32(1e38) for slots in after.slots.values())


def test_the_moving_average_follows_the_weights():
    one, state, batch = begun(optimizer=Sgd.params(learning_rate=1.0, ema_decay=0.75))
    after, _ = train_step(one, state, with_rows(batch))
    for k, old in state.weights.items():
        mean = 0.75 * old + 0.25 * after.weights[k]
        np.testing.assert_allclose(after.slots[k]["ema"], mean, rtol=1e-6, atol=1e-7)


def test_the_decay_of_the_moving_average_warms_up():
    task, batch = image_classification()
    task.model = Chain.params(layers=[BatchNorm.params(dim=C), Mean])
    one = learner(task, optimizer=Sgd.params(learning_rate=1.0, ema_decay=0.25, ema_warmup=True))
    state = tensors(initial_state(one))
    assert state.state
    means = {k: np.array(slots["ema"]) for k, slots in state.slots.items()}
    for n in range(4):  # (1 + n) / (10 + n) is above 0.25 from n = 2 on
        state, _ = train_step(one, state, with_rows(batch))
        decay = min(0.25, (1 + n) / (10 + n))
        for k, value in {**state.weights, **state.state}.items():
            means[k] = decay * means[k] + (1 - decay) * value
            np.testing.assert_allclose(state.slots[k]["ema"], means[k], rtol=1e-5, atol=1e-6)


def test_the_average_is_the_mean_over_the_last_steps_of_the_run():
    one, state, batch = begun(optimizer=Sgd.params(learning_rate=1.0, average_steps=3))
    one.optimizer.end_with(KnownLength(5))
    kept = []
    for _ in range(5):
        state, _ = train_step(one, state, with_rows(batch))
        kept.append({k: np.array(w) for k, w in state.weights.items()})
        for k in state.weights:  # until step 2 the weights themselves, then 1, 2 and 3 of them
            mean = np.mean([weights[k] for weights in kept[2:] or kept[-1:]], axis=0)
            np.testing.assert_allclose(state.slots[k]["ema"], mean, rtol=1e-5, atol=1e-6)


def test_two_kinds_of_averages_are_refused():
    with pytest.raises(ParamError, match="are two averages: set one of them"):
        Sgd.params(learning_rate=1.0, average_steps=3, ema_decay=0.5).build()


class Counted(ConstantRate):
    """Counts how often it was computed, by this class."""

    count: ClassVar[int] = 0

    def factor(self, step: Any, xp: ModuleType) -> Any:
        Counted.count += 1
        return super().factor(step, xp)


def test_a_schedule_is_traced_no_more_often_for_more_weights():
    def times(num_layers: int) -> int:
        task, batch = language_modeling()
        task.model.stack.set(num_layers=num_layers)
        sgd = learner(task, optimizer=Sgd.params(learning_rate=0.1, schedule=Counted))
        state = tensors(initial_state(sgd))
        before = Counted.count
        tf.function(lambda s, b: train_step(sgd, s, b), autograph=False).get_concrete_function(
            state, with_rows(batch)
        )
        return Counted.count - before

    assert 0 < times(1) == times(3)


def test_dropout_differs_between_steps_and_repeats_at_the_same_step():
    one, state, batch = begun()
    batch = with_rows(batch)
    losses = [
        float(
            train_step(one, state._replace(step=tf.constant(s)), batch)[1]["scalars"]["loss/total"]
        )
        for s in (5, 5, 6)
    ]
    assert losses[0] == losses[1] != losses[2]
