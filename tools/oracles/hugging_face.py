"""Writes tiny models of Hugging Face's transformers, with what they compute, for tests of lingo.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers
    /tmp/oracle/bin/python -m tools.oracles.hugging_face write
    /tmp/oracle/bin/python -m tools.oracles.hugging_face check FOLDER

It runs without lingo, in an environment of its own. `write` makes random models of a few thousand
weights, one for each architecture, and writes for each a folder in tests/params/huggingface:

    config.json        as transformers writes it
    config_4.json      the same as transformers 4 wrote it, where that differs
    model.safetensors  the weights, float32
    expected.npz       what the model computes: the arrays below
    versions.json      versions and settings

The arrays, of a model that has a decoder only (B = 2 rows, T tokens, V vocabulary):

    tokens    int32 [B, T]     the input; row i has lengths[i] tokens, then 0
    lengths   int32 [B]
    logits    float32 [B, T, V], 0 after the length of a row
    greedy    int32 [B, N]     N tokens that follow the row's, the most probable at each step
    beams     int32 [B, K, N]  of a beam search with K beams and length penalty 0, best first
    beam_log_probs  float32 [B, K]
    ended_beams, ended_beam_log_probs
                      the same, where `eos_token_id` of config.json ends a text and fills the rest
                      of its N tokens; above, this token ends no text

A model with an encoder has, instead of tokens and lengths, `encoder_tokens` [B, S] with
`encoder_lengths`, and `tokens` [B, T], all of them the decoder's input; what is generated follows
`decoder_start_token_id` alone.

`check` reads the folder of a model, config.json and safetensors, as transformers does, and compares
its logits with expected.npz in the same folder, or in the folder that --expected names.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

FOLDER = pathlib.Path(__file__).parents[2] / "tests/params/huggingface"
VOCAB_SIZE = 96
NUM_TOKENS = 12  # of the longer row
LENGTHS = (12, 7)
NEW_TOKENS = 12
NUM_BEAMS = 3
BEAM_SEARCH = {
    "num_beams": NUM_BEAMS,
    "num_return_sequences": NUM_BEAMS,
    "length_penalty": 0.0,
    "early_stopping": False,
}
MARGIN = 1e-3  # by which the chosen token or text must be more probable than the next
PAD_ID = 0

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
}
QWEN = LLAMA | {"num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "vocab_size": VOCAB_SIZE,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": VOCAB_SIZE,
        "n_positions": 32,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "bos_token_id": 1,
    },
    "llama2": LLAMA,
    "llama31": LLAMA
    | {
        "num_key_value_heads": 2,
        "rope_theta": 1000.0,  # wavelengths of 6, 35, 199, 1117: kept, between, scaled, scaled
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "max_position_embeddings": 512,
    },
    "qwen2": QWEN
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "tie_word_embeddings": True,
    },
    "qwen3": QWEN
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "gemma2": LLAMA
    | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 4.0,
        "sliding_window": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "mixtral": LLAMA
    | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_theta": 1e6,
        "sliding_window": None,
    },
    "t5": T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "t5_tied": T5 | {"feed_forward_proj": "relu", "tie_word_embeddings": True},
    "switch": T5
    | {
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "model_type": "switch_transformers",
        "feed_forward_proj": "relu",
        "num_experts": 4,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "expert_capacity": 64,  # no token is dropped
        "tie_word_embeddings": True,
    },
}


class Unclear(Exception):
    """Another token or text is nearly as probable: rounding might decide between them."""


class Texts(NamedTuple):
    """What a search found: int [B, number of texts, N], float [B, number of texts]."""

    tokens: np.ndarray
    log_probs: np.ndarray


def write(name: str) -> None:
    """Writes the folder of an architecture, with the first seed whose choices are all clear."""
    torch, transformers = _import("torch"), _import("transformers")
    for seed in range(1000):
        try:
            model = make_model(name, seed)
            arrays = compute(model, seed)
            break
        except Unclear:
            continue
    else:
        raise RuntimeError(f"{name}: no seed below 1000 has clear choices")
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)
    _write_config_4(folder)
    np.savez_compressed(folder / "expected.npz", allow_pickle=False, **arrays)
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "seed": seed,
        "num_beams": NUM_BEAMS,
        "length_penalty": BEAM_SEARCH["length_penalty"],
        "max_new_tokens": NEW_TOKENS,
    }
    (folder / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")
    print(f"{name}: seed {seed}, end {model.config.eos_token_id}, {_size(folder):,} bytes")


def make_model(name: str, seed: int) -> Any:
    """Returns a model of an architecture; all its weights are random, norms and biases included.

    `eos_token_id` of its config is a token that ends some text of the beam search.
    """
    torch, transformers = _import("torch"), _import("transformers")
    values = dict(CONFIGS[name])
    model_class = getattr(transformers, values["architectures"][0])
    config = model_class.config_class.from_dict(values | {"attn_implementation": "eager"})
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:  # a norm's scale or a bias: 1 or 0 until now
                weight.add_(0.2 * noise)
            else:
                weight.copy_(0.25 * noise)
    return model


def compute(model: Any, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of expected.npz; raises Unclear where rounding might change them.

    It sets `eos_token_id` of the model's config.
    """
    random = np.random.default_rng(seed)
    first = random.integers(2, VOCAB_SIZE, (2, NUM_TOKENS), dtype=np.int32)
    lengths = np.array(LENGTHS, np.int32)
    first[np.arange(NUM_TOKENS) >= lengths[:, None]] = PAD_ID
    if model.config.is_encoder_decoder:
        start = model.config.decoder_start_token_id
        tokens = random.integers(2, VOCAB_SIZE, (2, 8), dtype=np.int32)
        tokens[:, 0] = start
        inputs = {"encoder_tokens": first, "encoder_lengths": lengths, "tokens": tokens}
    else:
        inputs = {"tokens": first, "lengths": lengths}
    rows = [first[i, :n] for i, n in enumerate(lengths)]
    search = _searcher(model, rows)
    greedy = search(1, None)
    beams = search(NUM_BEAMS, None)
    end = _choose_end(beams.tokens)
    ended = search(NUM_BEAMS, end)
    if not (ended.tokens[:, 0, -2:] == end).all(1).any():  # none of the best ended early
        raise Unclear
    model.config.eos_token_id = end
    return inputs | {
        "logits": compute_logits(model, inputs),
        "greedy": greedy.tokens[:, 0],
        "beams": beams.tokens,
        "beam_log_probs": beams.log_probs,
        "ended_beams": ended.tokens,
        "ended_beam_log_probs": ended.log_probs,
    }


def compute_logits(model: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the logits of tokens, float32 [B, T, V], 0 where a row has no tokens."""
    torch = _import("torch")

    def mask(lengths: np.ndarray) -> np.ndarray:
        return (np.arange(NUM_TOKENS) < lengths[:, None]).astype(np.int64)

    tokens = inputs["tokens"]
    if model.config.is_encoder_decoder:
        weights = np.ones(tokens.shape, np.int64)
        call = {
            "input_ids": inputs["encoder_tokens"],
            "attention_mask": mask(inputs["encoder_lengths"]),
            "decoder_input_ids": tokens,
        }
    else:
        weights = mask(inputs["lengths"])
        call = {"input_ids": tokens, "attention_mask": weights}
    with torch.no_grad():
        tensors = {key: torch.from_numpy(value.astype(np.int64)) for key, value in call.items()}
        logits = model(**tensors, use_cache=False).logits.float().numpy()
    return np.where(weights[:, :, None] > 0, logits, 0).astype(np.float32)


def check(folder: pathlib.Path, expected: pathlib.Path) -> float:
    """Compares the logits of a folder's model with those expected.

    Returns:
        the largest difference.

    Raises:
        ValueError: if a weight is missing, unknown or of another shape, or if a difference is above
            1e-4 of the largest logit.
    """
    torch, transformers = _import("torch"), _import("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    (architecture,) = config.architectures
    model, report = getattr(transformers, architecture).from_pretrained(
        folder,
        output_loading_info=True,
        attn_implementation="eager",
        dtype=torch.float32,
        use_safetensors=True,
        local_files_only=True,
    )
    wrong = {kind: sorted(map(str, names)) for kind, names in report.items() if names}
    if wrong:
        raise ValueError(f"{folder}: {wrong}")
    with np.load(expected / "expected.npz") as file:
        arrays = dict(file)
    difference = np.abs(compute_logits(model.eval(), arrays) - arrays["logits"]).max()
    if not difference <= 1e-4 * np.abs(arrays["logits"]).max():
        raise ValueError(f"{folder}: the largest difference of logits is {difference:.3g}")
    return float(difference)


def _searcher(model: Any, rows: list[np.ndarray]) -> Callable[[int, int | None], Texts]:
    """Returns a function of the number of beams and the token that ends a text, if any."""
    torch = _import("torch")

    def search_row(row: np.ndarray, num_beams: int, end: int | None) -> Texts:
        model.generation_config.eos_token_id = end
        model.generation_config.pad_token_id = PAD_ID if end is None else end
        ids = torch.from_numpy(row.astype(np.int64))[None]
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            **(BEAM_SEARCH if num_beams > 1 else {}),
            output_scores=True,
            return_dict_in_generate=True,
        )
        num_given = 1 if model.config.is_encoder_decoder else len(row)
        tokens = result.sequences[:, num_given:].numpy()
        if end is not None:
            missing = NEW_TOKENS - int(tokens.shape[1])
            tokens = np.pad(tokens, ((0, 0), (0, missing)), constant_values=end)
        if num_beams == 1:
            best = torch.stack(result.scores).topk(2).values.numpy()  # [N, 1, 2]
            _check_clear(best[:, 0])
            return Texts(tokens, np.zeros(1))
        log_probs = result.sequences_scores.numpy()
        _check_clear(np.stack([log_probs[:-1], log_probs[1:]], 1))
        return Texts(tokens, log_probs)

    def search(num_beams: int, end: int | None) -> Texts:
        found = [search_row(row, num_beams, end) for row in rows]
        tokens = np.stack([texts.tokens for texts in found]).astype(np.int32)
        return Texts(tokens, np.stack([t.log_probs for t in found]).astype(np.float32))

    return search


def _check_clear(pairs: np.ndarray) -> None:
    """Raises Unclear if the two numbers of a pair are nearly equal: [any number, 2]."""
    if (pairs[:, 0] - pairs[:, 1] < MARGIN).any():
        raise Unclear


def _choose_end(beams: np.ndarray) -> int:
    """Returns a token that some texts have after a few others: int [B, K, N]."""
    later = set(beams[:, :, 4:10].ravel().tolist()) - set(beams[:, :, :4].ravel().tolist())
    if later <= {PAD_ID}:
        raise Unclear
    return min(later - {PAD_ID})


def _write_config_4(folder: pathlib.Path) -> None:
    """Writes config_4.json, if transformers 4 wrote another config.json of the same model.

    It had the base of the rotary frequencies at the top, their scaling as `rope_scaling`, and the
    type of the weights as `torch_dtype`.
    """
    transformers = _import("transformers")
    new = json.loads((folder / "config.json").read_text())
    if "rope_parameters" not in new:
        return
    old = dict(new)
    rope = dict(old.pop("rope_parameters"))
    old["rope_theta"] = rope.pop("rope_theta")
    old["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    old["torch_dtype"] = old.pop("dtype")
    old["transformers_version"] = "4.57.0"
    if old["model_type"] == "gemma2":
        del old["layer_types"]  # every second layer has a window, the first too
    (folder / "config_4.json").write_text(json.dumps(old, indent=2) + "\n")
    read = type(transformers.AutoConfig.from_pretrained(folder)).from_dict
    if read(dict(old)).to_diff_dict() != read(dict(new)).to_diff_dict():
        raise RuntimeError(f"{folder}: config_4.json is not of the same model")


def _size(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _import(name: str) -> Any:
    return importlib.import_module(name)


def main(arguments: list[str]) -> None:
    """Runs one of the two commands."""
    _import("transformers.utils.logging").disable_progress_bar()
    parser = argparse.ArgumentParser(prog="python -m tools.oracles.hugging_face")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write the models and what they compute")
    writing.add_argument("names", nargs="*", help=f"all, or some of {', '.join(CONFIGS)}")
    checking = commands.add_parser("check", help="compare the logits of a model's folder")
    checking.add_argument("folder", type=pathlib.Path)
    checking.add_argument("--expected", type=pathlib.Path, help="folder that has expected.npz")
    values = parser.parse_args(arguments)
    if values.command == "write":
        for name in values.names or CONFIGS:
            write(name)
        return
    difference = check(values.folder, values.expected or values.folder)
    print(f"{values.folder}: all weights are read; logits differ by at most {difference:.3g}")


if __name__ == "__main__":
    main(sys.argv[1:])
