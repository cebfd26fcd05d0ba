#!/usr/bin/env python3
"""Expected values of a tiny model by transformers, in f32 (needs torch and transformers, which no test does).

  expected.py check FOLDER        compares FOLDER/expected.safetensors with transformers on FOLDER's weights
  expected.py round FOLDER OUT    rounds FOLDER's weights to bf16, writes them and what transformers makes of them to OUT
"""
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

TOLERANCE = 1e-5  # f32 sums in another order


def expected(folder: Path, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The logits of the last 16 positions and every token's loss, the weights being exact in f32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = model(ids.long()[None]).logits[0]
    nll = torch.nn.functional.cross_entropy(logits[:-1], ids[1:].long(), reduction="none")
    return {"input_ids": ids, "logits_tail": logits[-16:].contiguous(), "nll": nll}


def check(folder: Path) -> None:
    written = load_file(folder / "expected.safetensors")
    computed = expected(folder, written["input_ids"])
    distance = {name: (computed[name] - written[name]).abs().max().item() for name in ("logits_tail", "nll")}
    print(f"{folder.name}: transformers {transformers.__version__}, largest differences {distance}")
    if max(distance.values()) > TOLERANCE:
        sys.exit(f"{folder}: not the expected values within {TOLERANCE}")


def round_weights(folder: Path, out: Path) -> None:
    check(folder)
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "bfloat16"
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(folder / "generation_config.json", out / "generation_config.json")
    ids = load_file(folder / "expected.safetensors")["input_ids"]
    save_file(expected(out, ids), out / "expected.safetensors")
    check(out)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check", folder]:
            check(Path(folder))
        case ["round", folder, out]:
            round_weights(Path(folder), Path(out))
        case _:
            sys.exit(__doc__)
