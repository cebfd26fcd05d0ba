#!/usr/bin/env python3
"""Expected values of a tiny model by transformers, in f32 (needs torch and transformers, which no test does).

  expected.py check FOLDER        compares FOLDER/expected.safetensors with transformers on FOLDER's weights
  expected.py round FOLDER OUT    rounds FOLDER's weights to bf16, writes them and what transformers makes of them to OUT
  expected.py cut FOLDER OUT LAYERS VOCAB
                                  leaves only the first LAYERS layers and VOCAB tokens of FOLDER's model
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


def write(folder: Path, out: Path, weights: dict[str, torch.Tensor], ids: torch.Tensor, **changes) -> None:
    """FOLDER's model with these weights and changes of its config, and what transformers makes of the ids."""
    check(folder)
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | changes
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(folder / "generation_config.json", out / "generation_config.json")
    save_file(expected(out, ids), out / "expected.safetensors")
    check(out)


def round_weights(folder: Path, out: Path) -> None:
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(folder / "model.safetensors").items()}
    write(folder, out, weights, load_file(folder / "expected.safetensors")["input_ids"], dtype="bfloat16")


def cut(folder: Path, out: Path, layers: int, vocab: int) -> None:
    weights = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        parts = name.split(".")
        if parts[1] == "layers" and int(parts[2]) >= layers:
            continue
        weights[name] = tensor[:vocab].contiguous() if parts[-2] in ("embed_tokens", "lm_head") else tensor
    changes = {"num_hidden_layers": layers, "vocab_size": vocab}
    if types := json.loads((folder / "config.json").read_text()).get("layer_types"):
        changes["layer_types"] = types[:layers]
    write(folder, out, weights, load_file(folder / "expected.safetensors")["input_ids"] % vocab, **changes)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check", folder]:
            check(Path(folder))
        case ["round", folder, out]:
            round_weights(Path(folder), Path(out))
        case ["cut", folder, out, layers, vocab]:
            cut(Path(folder), Path(out), int(layers), int(vocab))
        case _:
            sys.exit(__doc__)
