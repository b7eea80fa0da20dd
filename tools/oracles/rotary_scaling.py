"""Writes the rotary frequencies of Hugging Face's transformers, with which tests compare lingo's.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers
    /tmp/oracle/bin/python tools/oracles/rotary_scaling.py

It runs without lingo, in an environment of its own, and writes
tests/lingo/layers/sequence/rotary_scaling.json. Last run with torch 2.13.0 and transformers 5.23.0.
"""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

FILE = pathlib.Path(__file__).parents[2] / "tests/lingo/layers/sequence/rotary_scaling.json"

LLAMA_3_1 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
}
CASES: dict[str, tuple[dict[str, Any], int, int | None]] = {  # parameters, head width, length
    "linear": ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, 128, None),
    "dynamic, short": ({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 64, 2048),
    "dynamic, long": ({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 64, 6144),
    "yarn": (YARN, 64, None),
    "yarn, DeepSeek-V2": (YARN | {"mscale": 0.707, "mscale_all_dim": 0.5}, 64, None),
    "yarn, Qwen2.5": (
        YARN | {"rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
        128,
        None,
    ),
    "yarn, not truncated": (YARN | {"truncate": False, "beta_fast": 16, "beta_slow": 2}, 64, None),
    "yarn, attention factor": (YARN | {"attention_factor": 1.25}, 64, None),
    "llama3, 3.1": (LLAMA_3_1, 128, None),
    "llama3, 3.2": (LLAMA_3_1 | {"factor": 32.0}, 64, None),
}


def main() -> None:
    """Writes, for each case, parameters, frequencies and the factor of queries and keys."""
    rope = importlib.import_module("transformers.modeling_rope_utils")
    llama = importlib.import_module("transformers.models.llama.configuration_llama")
    found = {}
    for name, (parameters, head_dim, length) in CASES.items():
        config = llama.LlamaConfig(
            hidden_size=4 * head_dim,
            num_attention_heads=4,
            head_dim=head_dim,
            max_position_embeddings=2048,
            rope_parameters=dict(parameters),
        )
        compute = rope.ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        frequencies, factor = compute(config, None, seq_len=length)
        found[name] = {
            "rope_parameters": parameters,
            "head_dim": head_dim,
            "length": length,
            "frequencies": frequencies.tolist(),
            "attention_factor": float(factor),
        }
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
