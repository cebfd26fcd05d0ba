#!/usr/bin/env python3
"""Makes question.safetensors of this folder anew: what kvpress' SnapKV keeps with and without the question visible.

Needs torch, transformers and safetensors, and an unpacked wheel of kvpress 0.5.5. The text is the one of

  kvlab record --model experiments/models/reference --task niah-single-2 --tokens 4096 --seed 1 --index 6 --layers 0 \\
    --out TRACE

and kvpress is called with what transformers' f32 pass of the reference model over it makes. kvpress' __init__, which
asks for data sets, is left out. Its SnapKV has no sinks: sinks0 is what it keeps, sinks4 what it keeps where the first
four entries get the score that it gives its window.

  make_question.py TRACE FOLDER_OF_KVPRESS
"""
import sys
import types
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
QUESTION, ANSWER = 1, 2  # ids of <|question|> and <|answer|>
WINDOW = 32
REMOVED = 0.8


def import_press(folder: Path):
    """kvpress' SnapKVPress, without running the packages' __init__.py."""
    for name in ("kvpress", "kvpress.presses"):
        module = types.ModuleType(name)
        module.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = module
    from kvpress.presses.snapkv_press import SnapKVPress

    class WithSinks(SnapKVPress):
        sinks = 0

        def score(self, *arguments):
            self.last = super().score(*arguments)
            self.last[..., : self.sinks] = self.last.max()
            return self.last

    return WithSinks(compression_ratio=REMOVED, window_size=WINDOW, kernel_size=7)


def compressed(model, press, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """By number of sinks, what the press keeps and the score of the last entry kept, [layers, kv_heads, ...]."""
    keeps, cuts = {0: [], 4: []}, {0: [], 4: []}

    def compress(module, _, kwargs, __):
        keys = kwargs["past_key_values"].layers[module.layer_idx].keys
        # The positions ride along as values, so the press' own topk says what stays.
        positions = torch.arange(keys.shape[2]).view(1, 1, -1, 1).expand(keys.shape).float()
        for sinks in keeps:
            press.sinks = sinks
            kept = press.compress(module, kwargs["hidden_states"], keys, positions, None, kwargs)[1][..., 0].long()
            keep = torch.zeros(keys.shape[:3], dtype=torch.uint8).scatter_(2, kept, 1)[0]
            keeps[sinks].append(keep)
            cuts[sinks].append(press.last[0].where(keep == 1, torch.inf).amin(-1))

    hooks = [layer.self_attn.register_forward_hook(compress, with_kwargs=True) for layer in model.model.layers]
    with torch.no_grad():
        model(ids[None].long(), use_cache=True, logits_to_keep=1)
    for hook in hooks:
        hook.remove()
    packed = {s: np.packbits(torch.stack(keep).numpy(), axis=-1, bitorder="little") for s, keep in keeps.items()}
    return {f"sinks{s}.keep": torch.from_numpy(bits) for s, bits in packed.items()} | {
        f"sinks{s}.cut": torch.stack(cut) for s, cut in cuts.items()
    }


def main() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        HERE.parents[2] / "experiments/models/reference", dtype=torch.float32
    )
    press = import_press(Path(sys.argv[2]))
    trace = load_file(sys.argv[1])
    ids = trace["input_ids"]
    context, aware = (int((ids == mark).nonzero()[0]) for mark in (QUESTION, ANSWER))
    tensors = {
        "input_ids": ids[:aware],
        "context_tokens": torch.tensor([context], dtype=torch.int32),
        "needle": trace["links"][0, 2:],
    }
    for name, length in (("agnostic", context), ("aware", aware)):
        tensors |= {f"{name}.{key}": value for key, value in compressed(model, press, ids[:length]).items()}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, HERE / "question.safetensors")
    print({name: tuple(tensor.shape) for name, tensor in tensors.items()})


if __name__ == "__main__":
    main()
