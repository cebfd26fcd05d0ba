#!/usr/bin/env python3
"""Makes expected.json of this folder anew; needs torch and transformers (5.23) of PyPI.

Each case is a config.json and what transformers' rotary embedding makes of it: the bits of the f32 inverse frequencies
and the attention factor. Torch's vectorised powers depend on the machine (AVX2, AVX-512) and are not always rounded
correctly, so its plain C library calls are asked for.
"""
import json
import os
import pathlib

os.environ["ATEN_CPU_CAPABILITY"] = "default"

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
# (rope_theta, head dimension, scaling)
CASES = [
    (10000.0, 64, None),
    (10000.0, 80, None),
    (10000.0, 128, None),
    (100000.0, 64, None),
    (500000.0, 64, None),
    (1000000.0, 128, None),
    (123456.789, 96, None),
    (10000.0, 128, {"rope_type": "linear", "factor": 4.0}),
    (10000.0, 64, {"rope_type": "linear", "factor": 2.7}),
    (500000.0, 128, LLAMA3),
    (500000.0, 64, {**LLAMA3, "factor": 32.0}),
    (10000.0, 96, {**LLAMA3, "factor": 3.3, "low_freq_factor": 1.3, "high_freq_factor": 4.7,
                   "original_max_position_embeddings": 5000}),
    (1000000.0, 128, YARN),
    (10000.0, 64, {**YARN, "factor": 8.0, "original_max_position_embeddings": 4096}),
    (10000.0, 96, {**YARN, "factor": 3.3, "beta_fast": 20.0, "beta_slow": 1.5, "truncate": False}),
    (10000.0, 64, {**YARN, "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
                   "mscale_all_dim": 0.707}),
    (10000.0, 64, {**YARN, "attention_factor": 1.25}),
    (10000.0, 8, {**YARN, "original_max_position_embeddings": 6}),
]


def expected(theta: float, dim: int, scaling: dict | None) -> dict:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2 * dim,
              "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 8,
              "max_position_embeddings": 131072, "rope_theta": theta}
    if scaling:
        config["rope_scaling"] = scaling
    rope = LlamaRotaryEmbedding(transformers.LlamaConfig(**json.loads(json.dumps(config))))
    bits = rope.inv_freq.numpy().view(numpy.uint32)
    return {"config": config, "inv_freq_bits": bits.tolist(), "attention_factor": float(rope.attention_scaling)}


def main() -> None:
    assert torch.backends.cpu.get_cpu_capability() == "DEFAULT", torch.backends.cpu.get_cpu_capability()
    lines = [json.dumps(expected(*case)) for case in CASES]
    target = pathlib.Path(__file__).with_name("expected.json")
    target.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {len(lines)} cases")


if __name__ == "__main__":
    main()
