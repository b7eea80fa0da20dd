"""A trained model: an experiment with the weights of one of its checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.errors import DamagedCheckpoint, DeletedCheckpoint
from lingo.checkpoints.store import share_checkpoint
from lingo.config.lazy import tf
from lingo.config.options import documents, method_takes
from lingo.config.params import ParamError, Params, fields
from lingo.contract import Experiment
from lingo.data.input import Input
from lingo.data.prompt import Prompt
from lingo.decode.chat import Chat, ChatOptions
from lingo.decode.decoding import Decoding
from lingo.decode.sampling import Sampling
from lingo.decode.settings import DecodeOptions
from lingo.decode.stream import StreamedSampling
from lingo.decode.text import Continuation
from lingo.export.exported_model import ExportedModel
from lingo.export.formats import Quantize
from lingo.export.hugging_face import export_hugging_face
from lingo.export.portable import Settings, export_portable
from lingo.layers import context
from lingo.layers.path import LayerWeights
from lingo.layers.quantization.fold import dequantize_weights
from lingo.learner.state import TrainState, load_arrays, restore_state
from lingo.learner.step import normalize_losses
from lingo.learner.task import BATCH_EXAMPLE, Batch, CheckedBatch
from lingo.metrics.class_names import add_classes
from lingo.runtimes import local
from lingo.runtimes.program import Program
from lingo.storage.files import refuse_address
from lingo.trainer.directory.run_directory import CONFIG, RunDirectory
from lingo.trainer.evaluation import predict as prediction
from lingo.trainer.evaluation.best import choose
from lingo.trainer.evaluation.evaluate import evaluate_all
from lingo.trainer.evaluation.generate import check_prompt, generate, tokenizer_of
from lingo.trainer.evaluation.stream import stream_prompt

WeightQuantize = Literal["none", "int8_weights"]
"""How weights of matrix products are kept in memory: as float32, or in 8 bits."""


@dataclasses.dataclass(frozen=True)
class GenerateCall(DecodeOptions):
    """The arguments of `Trained.generate`."""

    prompts: str | Sequence[str]


@dataclasses.dataclass(frozen=True)
class ExportCall(Settings):
    """The arguments of `Trained.export`."""

    folder: str | Path
    progress: Callable[[str], None] = dataclasses.field(default=lambda _: None, kw_only=True)


class Trained:
    """A trained model: `experiment`, with the weights of one `checkpoint` of its run."""

    def __init__(
        self,
        params: Params,
        run: RunDirectory,
        *,
        step: int | Literal["best"] | None = None,
        quantize: WeightQuantize = "none",
    ) -> None:
        """Reads the weights. If there are several processes, all must call the same methods.

        Nothing is written into the run directory. `step` is the checkpoint's step, "best" (by
        `evaluate.metric`), or None for the latest undamaged checkpoint. `quantize="int8_weights"`
        keeps only the evaluation weights in memory, with the weights of matrix products in 8 bits.

        Raises:
            ParamError: if the experiment cannot be built, "best" is not defined, `quantize` is not
                known, or "int8_weights" is used with a runtime of several devices.
            NoUsableCheckpoint, DamagedCheckpoint: if that step has no undamaged checkpoint.
            CheckpointMismatch: if the checkpoint belongs to another model.
        """
        self.experiment: Experiment = params.build()
        self._run = run
        if quantize not in (kinds := get_args(WeightQuantize)):
            raise ParamError(f"quantize={quantize!r} is not one of {', '.join(kinds)}")
        self._is_int8 = quantize == "int8_weights"
        if self._is_int8:
            local.check_one_device(self.experiment.runtime)
        self.checkpoint, state = _load(self.experiment, run, step)
        if self._is_int8:
            state = state.select(self.experiment.p.evaluate.weights)
            state = local.quantize_state(self.experiment.task, state)
        self._state = state
        self._decodings: dict[tuple[Any, ...], Decoding] = {}

    def __repr__(self) -> str:
        kind = type(self.experiment.task).__name__
        return (
            f"<Trained {kind}, {self._num_weights():,} weights, step {self.step}: {self._run.path}>"
        )

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: run, step, number of weights, and the params as a tree."""
        return f"<p>{html.escape(repr(self))}</p>{self.experiment.p._repr_html_()}"

    def _num_weights(self) -> int:
        return sum(math.prod(spec.shape) for spec in self.experiment.task.weights().values())

    @property
    def step(self) -> int:
        """The number of steps that trained the weights."""
        return self.checkpoint.step

    @functools.cached_property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by label, as in training; () if classes have no names."""
        return self._run.class_names()

    @functools.cached_property
    def weights(self) -> Mapping[str, np.ndarray]:
        """The weights of evaluations and predictions: path -> float32 array of any shape.

        A path names a weight of one layer, `model/stack/layers/3/ffn/w_in`, even where a program
        stacks layers. Arrays are read-only, and cut out on access. With `quantize="int8_weights"`
        they have the values that matrix products use, after weight wrappers and rounding.
        """
        return LayerWeights(dequantize_weights(self._evaluation_state.weights))

    def loss(self, batch: Mapping[str, np.ndarray]) -> float:
        """Returns the training loss of a batch, without dropout.

        The weights are the trained weights; with `quantize="int8_weights"`, the evaluation weights.
        Arrays are [B, ...] (B batch), as in `experiment.train_input.batch(0)`; arrays that the loss
        does not read may be left out. Raises ParamError for missing arrays or other ranks.
        """
        self._check_batch(batch)
        return float(self._loss({name: tf.constant(value) for name, value in batch.items()}))

    @overload
    def predict(
        self,
        inputs: Input | Mapping[str, Any] | str | Path,
        *,
        batch_size: int | None = None,
        stream: Literal[False] = False,
        progress: prediction.Progress | None = None,
    ) -> prediction.Predictions: ...

    @overload
    def predict(
        self,
        inputs: Input | Mapping[str, Any] | str | Path,
        *,
        batch_size: int | None = None,
        stream: Literal[True],
        progress: prediction.Progress | None = None,
    ) -> Iterator[prediction.Predictions]: ...

    @documents(prediction.PredictOptions)
    def predict(
        self,
        inputs: Input | Mapping[str, Any] | str | Path,
        *,
        batch_size: int | None = None,
        stream: bool = False,
        progress: prediction.Progress | None = None,
    ) -> prediction.Predictions | Iterator[prediction.Predictions]:
        """Returns the task's predictions for each example (`Task.predict`): `model.predict(batch)`.

        Predictions use the evaluation weights. If layers mix examples, as experts with a capacity
        do, a prediction depends on the other examples of its batch.

        Args:
            inputs: an input that ends, such as `model.experiment.eval_inputs["heldout"]`; or
                {name: [N, ...]}, the arrays of `train_input.batch(0)` that the prediction reads; or
                rows of a table without labels, {column: values [N]} or a data frame; or
                the path of files without labels, "cat.png", a folder or a glob, which are read as
                the files of the first evaluation input are (`Input.unlabeled_params`).
            stream: return an iterator over batches' results, with only one batch in memory.
            progress: called with the number of batches done and the total.

        Returns:
            {name: [N, ...]}, in the order of `inputs`, without padding. An Input also gives
            `example_id`, int64 [N], each example's index in it. Examples in files have `file`;
            classifiers give `class` and `probability`; recognizers `audio` (a file) and `text`.

        Raises:
            ParamError: if the task has no predictions, the input has no end, or an array is
                missing, not known, or of another shape or dtype.
            DataError, ProgramError: if the input, a file or a device fails.
        """
        batches = prediction.predict_batches(
            self.experiment, self._program, inputs, batch_size=batch_size, progress=progress
        )
        data = inputs if isinstance(inputs, Input) else self.experiment.prediction_input
        named = (data.describe_predictions(add_classes(b, self.class_names)) for b in batches)
        return named if stream else prediction.concatenate(named)

    def __call__(self, batch: Mapping[str, Any]) -> prediction.Predictions:
        """Returns the predictions for arrays {name: [B, ...]}, computed as one batch."""
        self._check_batch(batch)
        return self.predict(batch, batch_size=max([1, *map(len, batch.values())]))

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Returns the metrics over all examples of each evaluation input, by input name."""
        evaluations = evaluate_all(self.experiment, self._program)
        return {one.input: one.metrics for one in evaluations}

    @method_takes(GenerateCall)
    def generate(self, call: GenerateCall) -> Any:
        """Continues prompts, or answers them if trained on text pairs: `model.generate("def ")`.

        Args:
            prompts: a text, or several.

        Returns:
            The text that follows the prompt, a str; for several prompts, a list of such texts. With
            `num_samples`, each text is replaced by a list of that many texts.

        Raises:
            ParamError: if a prompt is not a text or is too long, if settings are not valid, or if
                the experiment's data are not texts.
        """
        one = isinstance(call.prompts, str)
        prompts = [call.prompts] if isinstance(call.prompts, str) else call.prompts
        decoded = self.decode(prompts, call.decoding(), seed=call.seed)
        samples = [[sample.text for sample in samples] for samples in decoded]
        texts = [first for first, *_ in samples] if call.num_samples is None else samples
        return texts[0] if one else texts

    def decode(
        self,
        prompts: Sequence[str],
        decoding: Params,
        *,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[list[Continuation]]:
        """Returns the texts of each prompt, with tokens and their log-probabilities.

        `decoding` are the params of a Sampling or a Beam; `progress` is called with the number of
        prompts done and the total. Raises the ParamErrors of `generate`.
        """
        if type(seed) is not int:
            raise ParamError(f"seed={seed!r} ({type(seed).__name__}) is not an int")
        built = self._build_decoding(decoding)
        return generate(
            self.experiment, self._program, prompts, built, seed=seed, progress=progress
        )

    def _build_decoding(self, params: Params) -> Decoding:
        """Builds params; equal params give the same object, whose program is compiled already."""
        settings = (params.cls, *(getattr(params, name) for name in fields(params.cls)))
        return self._decodings.setdefault(settings, params.build())

    def stream(
        self, prompt: Prompt, decoding: Params, *, seed: int = 0
    ) -> Generator[str, None, list[Continuation]]:
        """Yields the first text of a prompt in pieces, one per token; returns all its texts.

        The texts are the same as from `decode`. A token that ends within a character gives the
        piece "". The generator's `close` stops the decoding at its next token. With another
        decoding than `Sampling`, or if XLA compiles the program, the whole text is one piece.

        Args:
            prompt: as `experiment.train_input.prompt(text)` returns it.
            decoding: the params of a Sampling or a Beam.

        Raises:
            ParamError: if the prompt is too long, or the experiment's data are not texts.
            ProgramError: if a device fails.
        """
        check_prompt(self.experiment, prompt, max_tokens=decoding.max_tokens)
        if decoding.cls is Sampling and self._program.can_stream:
            values = {name: getattr(decoding, name) for name in fields(Sampling)}
            decoding = StreamedSampling.params(**values)
        built = self._build_decoding(decoding)
        return (yield from stream_prompt(self.experiment, self._program, prompt, built, seed=seed))

    @method_takes(ChatOptions)
    def chat(self, call: ChatOptions) -> Chat:
        """Returns a conversation: `model.chat().say("hello")`; `stream` yields an answer in pieces.

        Args:

        Raises:
            ParamError: if settings are not valid, or the experiment's data are not texts.
        """
        tokenizer_of(self.experiment)
        return Chat(self, self.experiment.chat, call)

    @method_takes(ExportCall)
    def export(self, call: ExportCall) -> None:
        """Writes the model, with the evaluation weights, into a new folder for other programs.

        Args:
            folder: must not exist yet, but its parent must; an error leaves no folder.
            signatures: the program's: `predict`, `score`, `decode`; empty: all of the task's.
            progress: called with the name of the program's next work that takes seconds.

        Raises:
            ParamError: if the folder exists or is inside the run, the format is not known,
                has no such setting, or cannot hold the model; and if several processes export a
                program.
            ExportError: if a program does not compute the same as the run.
            MissingPackage: if a package for the format is not installed.
            StorageError: if the folder cannot be written.
        """
        refuse_address(call.folder)
        call.check()
        folder = Path(call.folder)
        if folder.resolve().is_relative_to(self._run.path.resolve()):
            raise ParamError(f"{folder} is inside the run {self._run.path}: name a folder outside")
        if call.format == "huggingface":
            source = None if call.config is None else Path(call.config).expanduser()
            export_hugging_face(
                self.experiment,
                self.weights,
                folder,
                states=LayerWeights(self._evaluation_state.state),
                config=source,
                dtype=call.dtype,
                class_names=self.class_names,
            )
            return
        if self.experiment.runtime.join().count > 1:
            raise ParamError(
                f"{call.format} is written by one process, and TF_CONFIG names several: run it once"
                " without TF_CONFIG, on devices of this machine or with runtime=Local"
            )
        saved = json.loads(self._run.read(CONFIG) or "{}")
        state = self._state_to_export(call.quantize)
        program = self._program_to_compare(call.quantize, state)
        export_portable(
            self.experiment,
            state.weights,
            state.state,
            folder,
            call,
            run=prediction.Reference(self.experiment, program),
            description={
                "experiment": saved.get("experiment"),
                "config_sha256": saved.get("digest"),
                "step": self.step,
                "weights": self.experiment.p.evaluate.weights,
                "class_names": list(self.class_names),
            },
            progress=call.progress,
        )

    def _state_to_export(self, quantize: Quantize) -> TrainState:
        state = self._evaluation_state
        if quantize == "int8_weights":
            return state if self._is_int8 else local.quantize_state(self.experiment.task, state)
        if self._is_int8:
            return local.dequantize_state(self.experiment.task, state)
        return local.fold_state(self.experiment.task, state)

    def _program_to_compare(self, quantize: Quantize, state: TrainState) -> Program:
        """Returns the program with which an export of `state` is compared."""
        if quantize == "int8_weights" and not self._is_int8:
            return local.Int8Program(self.experiment.learner, state, self.experiment.runtime)
        return self._program

    def exported_model(self) -> ExportedModel:
        """Returns the task, with the evaluation weights, as functions that exporters can trace."""
        state = self._state_to_export("none")
        return ExportedModel(
            self.experiment, state.weights, state.state, class_names=self.class_names
        )

    def _check_batch(self, batch: Mapping[str, np.ndarray]) -> None:
        if not isinstance(batch, Mapping):
            raise ParamError(
                f"a batch is a dict of arrays, got {type(batch).__name__}: {BATCH_EXAMPLE}"
            )
        for name, (shape, _) in self.experiment.train_input.specs().items():
            if name in batch and (array := prediction.as_array(name, batch[name])).ndim != len(
                shape
            ):
                raise ParamError(
                    f"{name!r} has shape {array.shape}, but needs {len(shape)} axes:"
                    f" {BATCH_EXAMPLE}"
                )

    @property
    def _evaluation_state(self) -> TrainState:
        which = self.experiment.p.evaluate.weights
        return self._state if self._is_int8 else self._state.select(which)

    @functools.cached_property
    def _loss(self) -> Any:
        state = self._state

        def loss(batch: Batch) -> tf.Tensor:
            task, batch = self.experiment.task.select(batch), CheckedBatch(batch)
            call = {"state": state.state, "rows": batch.get("rows")}
            call["weights_ready"] = self._is_int8
            sums, sides = context.apply(task, state.weights, batch, method="loss", call=call)
            denominators = task.loss_denominators(batch)
            return normalize_losses(task, sums, sides.losses, denominators)["total"]

        return tf.function(loss, autograph=False)

    @functools.cached_property
    def _program(self) -> Program:
        learner, runtime = self.experiment.learner, self.experiment.runtime
        if self._is_int8:
            return local.Int8Program(learner, self._state, runtime)
        return runtime.start(learner, self._state)


def _load(
    experiment: Experiment, run: RunDirectory, step: int | Literal["best"] | None
) -> tuple[Checkpoint, TrainState]:
    """Returns the checkpoint that `choose` finds, the same in all processes, and its state.

    Another is chosen if the training deletes it before it is read, or if it holds no tensors.
    """
    processes = experiment.runtime.join()
    unreadable: list[DamagedCheckpoint] = []

    def find() -> Checkpoint:
        return choose(experiment, run, step, unreadable=unreadable)

    while True:
        found = share_checkpoint(processes, run.checkpoints, find)
        try:
            state = load_arrays(restore_state(experiment.learner, found))
        except (DamagedCheckpoint, DeletedCheckpoint) as error:
            processes.any(True)
            if isinstance(error, DamagedCheckpoint):
                if step is not None or error.path in [other.path for other in unreadable]:
                    raise
                unreadable.append(error)
        else:
            if not processes.any(False):
                return found, state
