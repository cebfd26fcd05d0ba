#!/usr/bin/env python3
"""Makes expected.safetensors and tokenizer_cases.json of this folder anew.

make.py GGUF: the file of `./dev model smollm2-135m`. Needs torch, transformers, accelerate, gguf and safetensors. The
text is what the reference model's tokenizer decodes from tests/data/reference's book0.input_ids.
"""
import json
import lzma
import pathlib
import sys

import gguf
import numpy
import torch
from safetensors.numpy import load, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKENS = 2048
TEXTS = [
    "Hello, world! 12345 it's 1775. What's up? naïve café 东京 🙂\n\n\tdef f(x):\n        return x**2  # don't\r\n",
    "  leading spaces and trailing   ",
    "<|im_start|>user\nHow many are 3½ × 20²?<|im_end|>\n<|im_start|>assistant\n",
    "I'LL they'll WE'VE\u00a0non-breaking\u2003em; 1234567890 a1b22c333 ٣٤٥ Ⅷ ①",
    "e\u0301 is not é; ﬁ ligature, Straße, ЗДРАВСТВУЙТЕ, שלום, नमस्ते, ไทย, 한국어",
    "<reponame>a/b<file_sep>x.py\n\n\n\n    \t\t  <|endoftext|>",
    "".join(chr(c) for c in [9, 10, 13, *range(32, 127)]),  # the vocabulary lacks other control characters
    "",
]


def published(reader):
    """The tokenizer as its publisher's tokenizer.json describes it: digits one by one, then GPT-2's words."""
    field = lambda name: reader.fields[f"tokenizer.ggml.{name}"].contents()
    tokens = field("tokens")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = field("token_type")
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer


def main():
    path = pathlib.Path(sys.argv[1])
    root = pathlib.Path(__file__).resolve().parents[3]
    out = pathlib.Path(__file__).resolve().parent
    tokenizer = published(gguf.GGUFReader(path))
    transformers = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    book = load(lzma.open(root / "tests/data/reference/expected.safetensors.xz").read())["book0.input_ids"]
    text = Tokenizer.from_file(str(root / "experiments/models/reference/tokenizer.json")).decode(
        book.reshape(-1).tolist(), skip_special_tokens=True)
    texts = TEXTS + [text[:4000]]
    cases = [{"text": each, "ids": tokenizer.encode(each, add_special_tokens=False).ids} for each in texts]
    for case in cases:
        same = transformers(case["text"], add_special_tokens=False).input_ids == case["ids"]
        print("transformers' own reading of the GGUF", "agrees" if same else "differs", repr(case["text"][:40]))
    (out / "tokenizer_cases.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ids = ([model.config.bos_token_id] + tokenizer.encode(text, add_special_tokens=False).ids)[:TOKENS]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    nll = -torch.log_softmax(logits, -1)[torch.arange(TOKENS - 1), torch.tensor(ids[1:])]
    print("mean nll", nll.mean().item(), model.config)
    save_file({"input_ids": numpy.array(ids, numpy.int32), "nll": nll.float().numpy()},
              out / "expected.safetensors")


main()
