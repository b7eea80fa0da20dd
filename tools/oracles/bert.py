"""Writes a tiny BERT of Hugging Face's transformers, with what it computes, for tests of lingo.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers
    /tmp/oracle/bin/python -m tools.oracles.bert write
    /tmp/oracle/bin/python -m tools.oracles.bert check FOLDER

It runs without lingo, in an environment of its own. `write` makes a random BertForPreTraining of
some thousand weights, and writes into tests/tasks/hugging_face/bert:

    config.json        as transformers writes it
    model.safetensors  the weights, float32
    expected.npz       what the model computes: the arrays below
    versions.json      versions and the seed

The arrays (B = 3 pairs of texts, T tokens, K masked tokens, V vocabulary, D width):

    tokens, types, segments      int32 [B, T]; segments are 1, or 0 for padding
    masked_positions, masked_ids int32 [B, K]; after the last masked token 0
    masked_weights               float32 [B, K]; after the last masked token 0
    is_random                    int32 [B]
    logits                       float32 [B, T, V] of the masked tokens' head, 0 at padding
    pair_logits                  float32 [B, 2]
    pooled                       float32 [B, D]
    loss                         float32, the sum of the means over masked tokens and over pairs
    gradient:<name>              float32, of the loss, by transformers' name of each weight

`check` reads a folder, config.json and safetensors, as transformers does, and compares its logits
of masked tokens, and of pairs if its architecture has them, with expected.npz.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
from typing import Any

import numpy as np

FOLDER = pathlib.Path(__file__).parents[2] / "tests/tasks/hugging_face/bert"
SEED = 0
CONFIG: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
LENGTHS = (10, 7, 9)  # of the pairs; T is the first
SECOND_TEXTS = (6, 3, 4)  # where the second text begins
MASKED = ((2, 5, 7), (1, 4), (8,))
PAD_ID, MASK_ID = 0, 4


def write() -> None:
    """Writes the folder."""
    torch, transformers = _import("torch"), _import("transformers")
    model = make_model()
    arrays = make_batch()
    FOLDER.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(FOLDER)
    (FOLDER / "generation_config.json").unlink(missing_ok=True)
    (FOLDER / "model.safetensors").chmod(0o644)
    np.savez_compressed(
        FOLDER / "expected.npz", allow_pickle=False, **arrays, **compute(model, arrays)
    )
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "seed": SEED,
    }
    (FOLDER / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")
    size = sum(file.stat().st_size for file in FOLDER.iterdir())
    print(f"{FOLDER}: {size:,} bytes")


def make_model() -> Any:
    """Returns a model whose weights are all random, in norms and biases too."""
    torch, transformers = _import("torch"), _import("transformers")
    config = transformers.BertConfig(**CONFIG, attn_implementation="eager")
    model = transformers.BertForPreTraining(config).eval()  # no dropout
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:  # a norm's scale or a bias: 1 or 0 until now
                weight.add_(0.2 * noise)
            else:
                weight.copy_(0.3 * noise)
    return model


def make_batch() -> dict[str, np.ndarray]:
    """Returns the arrays that the model reads, as a batch of lingo has them."""
    draw = np.random.default_rng(SEED)
    place, lengths = np.arange(LENGTHS[0]), np.array(LENGTHS)[:, None]
    segments = place < lengths
    ids = np.where(segments, draw.integers(MASK_ID + 1, CONFIG["vocab_size"], segments.shape), 0)
    shape = (len(LENGTHS), max(map(len, MASKED)))
    positions, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for row, places in enumerate(MASKED):
        positions[row, : len(places)] = places
        weights[row, : len(places)] = 1
    chosen = np.take_along_axis(ids, positions, 1)
    for row, places in enumerate(MASKED):
        ids[row, list(places)] = MASK_ID
    return {
        "tokens": ids.astype(np.int32),
        "types": (segments & (place >= np.array(SECOND_TEXTS)[:, None])).astype(np.int32),
        "segments": segments.astype(np.int32),
        "masked_positions": positions,
        "masked_ids": (chosen * (weights > 0)).astype(np.int32),
        "masked_weights": weights,
        "is_random": np.array([1, 0, 1], np.int32),
    }


def compute(model: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns what the model computes of a batch."""
    torch = _import("torch")
    labels = np.full(arrays["tokens"].shape, -100, np.int64)  # which transformers ignores
    for row, places in enumerate(MASKED):
        labels[row, list(places)] = arrays["masked_ids"][row, : len(places)]
    call = _call(arrays)
    result = model(
        **call,
        labels=torch.from_numpy(labels),
        next_sentence_label=torch.from_numpy(arrays["is_random"].astype(np.int64)),
    )
    result.loss.backward()
    gradients = {
        f"gradient:{name}": weight.grad.numpy() for name, weight in model.named_parameters()
    }
    with torch.no_grad():
        pooled = model.bert(**call).pooler_output.numpy()
    return {
        "logits": _at_text(result.prediction_logits, arrays),
        "pair_logits": result.seq_relationship_logits.detach().numpy(),
        "pooled": pooled,
        "loss": result.loss.detach().numpy(),
        **gradients,
    }


def check(folder: pathlib.Path, expected: pathlib.Path) -> float:
    """Compares the logits of a folder's model with those expected.

    Returns:
        the largest difference.

    Raises:
        ValueError: if a weight is missing, unknown or of another shape, or if a difference is above
            1e-4.
    """
    torch, transformers = _import("torch"), _import("transformers")
    (architecture,) = transformers.AutoConfig.from_pretrained(folder).architectures
    model, report = getattr(transformers, architecture).from_pretrained(
        folder,
        output_loading_info=True,
        attn_implementation="eager",
        dtype=torch.float32,
        use_safetensors=True,
        local_files_only=True,
    )
    if wrong := {kind: sorted(map(str, names)) for kind, names in report.items() if names}:
        raise ValueError(f"{folder}: {wrong}")
    with np.load(expected / "expected.npz") as file:
        arrays = dict(file)
    with torch.no_grad():
        result = model.eval()(**_call(arrays))
    found = {}
    if architecture == "BertForPreTraining":
        found["logits"] = _at_text(result.prediction_logits, arrays)
        found["pair_logits"] = result.seq_relationship_logits.numpy()
    elif architecture == "BertForMaskedLM":
        found["logits"] = _at_text(result.logits, arrays)
    else:
        found["pooled"] = result.pooler_output.numpy()
    difference = max(float(np.abs(value - arrays[name]).max()) for name, value in found.items())
    if not difference <= 1e-4:
        raise ValueError(f"{folder}: the largest difference is {difference:.3g}")
    return difference


def _call(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    torch = _import("torch")
    names = {"input_ids": "tokens", "token_type_ids": "types", "attention_mask": "segments"}
    return {k: torch.from_numpy(arrays[name].astype(np.int64)) for k, name in names.items()}


def _at_text(logits: Any, arrays: dict[str, np.ndarray]) -> np.ndarray:
    return logits.detach().numpy() * arrays["segments"][:, :, None].astype(np.float32)


def _import(name: str) -> Any:
    return importlib.import_module(name)


def main(arguments: list[str]) -> None:
    """Runs one of the two commands."""
    _import("transformers.utils.logging").disable_progress_bar()
    parser = argparse.ArgumentParser(prog="python -m tools.oracles.bert")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="write the model and what it computes")
    checking = commands.add_parser("check", help="compare what a model's folder computes")
    checking.add_argument("folder", type=pathlib.Path)
    values = parser.parse_args(arguments)
    if values.command == "write":
        write()
        return
    difference = check(values.folder, FOLDER)
    print(f"{values.folder}: all weights are read; results differ by at most {difference:.3g}")


if __name__ == "__main__":
    main(sys.argv[1:])
