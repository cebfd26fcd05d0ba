#!/usr/bin/env python3
"""Makes tiny.safetensors of this folder anew: what released codes make of one cache, that of tests/data/llama.

Needs torch, transformers and safetensors, an unpacked wheel of kvpress 0.5.5, and R-KV's repository (its rkv/utils.py
and rkv/compression/r1_kv.py as of 31cf555). Both are called with the keys, values and newest queries of transformers'
f32 pass over the folder's input_ids. kvpress' own imports, which ask for data sets and an older transformers, are left
out, as are R-KV's.

  make.py FOLDER_OF_KVPRESS FOLDER_OF_R_KV
"""
import sys
import types
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.sdpa_attention import sdpa_attention_forward

HERE = Path(__file__).parent
BUDGET = 200  # of 400 tokens
queries = {}


def name_package(name: str, folder: Path, **members) -> None:
    """A package without running its __init__.py."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    module.__dict__.update(members)
    sys.modules[name] = module


def record(module, q, k, v, mask, **options):
    queries[module.layer_idx] = q
    return sdpa_attention_forward(module, q, k, v, mask, **options)


def read_cache():
    transformers.AttentionInterface.register("record", record)
    folder = HERE.parent / "llama"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.set_attn_implementation("record")
    ids = load_file(folder / "expected.safetensors")["input_ids"].long()
    with torch.no_grad():
        return model(ids[None], use_cache=True).past_key_values.layers


def kvpress_scores(folder: Path, layers) -> dict[str, torch.Tensor]:
    name_package("kvpress", folder / "kvpress")
    name_package("kvpress.presses", folder / "kvpress" / "presses")
    from kvpress.presses.knorm_press import KnormPress
    from kvpress.presses.lagkv_press import LagKVPress

    presses = {
        "knorm": KnormPress(),
        "lagkv_l64": LagKVPress(n_sink=4, lag_size=64),
        "lagkv_l64_cross": LagKVPress(n_sink=4, lag_size=64, cross_scoring=True),
        "lagkv_l256": LagKVPress(n_sink=4, lag_size=256),  # too few tokens: the newest stay
    }
    return {
        f"{name}.score": torch.cat([press.score(None, None, at.keys, at.values, None, {}) for at in layers])
        for name, press in presses.items()
    }


def r_kv_scores(folder: Path, layers) -> dict[str, torch.Tensor]:
    name_package("rkv", folder / "rkv")
    from rkv.utils import cal_similarity, compute_attention_scores

    name_package("rkv.compression", folder / "rkv" / "compression", cal_similarity=cal_similarity,
                 compute_attention_scores=compute_attention_scores)
    from rkv.compression.r1_kv import R1KV

    tensors = {}
    # Lambda 1 leaves SnapKV as R-KV's repository has it.
    for name, weight in (("r_kv_0.1", 0.1), ("r_kv_0.07", 0.07), ("r_kv_1", 1.0)):
        code = R1KV(budget=BUDGET, mix_lambda=weight)
        scores, keeps = [], []
        for i, at in enumerate(layers):
            newest = queries[i][:, :, -code.window_size:]
            scores.append(code.score_kv(at.keys, newest))
            # The positions ride along as values, so update_kv's own topk says what stays.
            positions = torch.arange(at.keys.shape[2]).view(1, 1, -1, 1).expand(at.keys.shape).float()
            kept = code.update_kv(at.keys, newest, positions)[1][..., 0].long()
            keeps.append(torch.zeros(at.keys.shape[:3], dtype=torch.uint8).scatter_(2, kept, 1))
        tensors[f"{name}.score"] = torch.cat(scores)
        tensors[f"{name}.keep"] = torch.cat(keeps)
    return tensors


def main() -> None:
    layers = read_cache()
    tensors = kvpress_scores(Path(sys.argv[1]), layers) | r_kv_scores(Path(sys.argv[2]), layers)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, HERE / "tiny.safetensors")
    print({name: tuple(tensor.shape) for name, tensor in tensors.items()})


if __name__ == "__main__":
    main()
