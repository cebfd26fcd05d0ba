#!/usr/bin/env python3
"""Makes expected.safetensors of this folder anew: what ForesightKV's published code makes of small seeded tensors.

  make.py FOLDER_OF_FORESIGHTKV

Needs torch and safetensors, and the repository RUCAIBox/ForesightKV of GitHub: files of reinforcment_learning as of
cb9f83b (cache.py, loss.py, qwen3.py) and 1c72fb6 (train.py, train_qwen2.py), supervised_training/train_qwen2.py and
evaluation/rkv/compression/foresightkv.py as of 1c72fb6. The supervised code's own cache.py and qwen3.py were not at
hand; what it imports of them has the names of reinforcment_learning's, which stand in.

Of each file only the definitions and lines named below run, in f32 on the CPU: their imports ask for a GPU, flash
attention, data sets and an older transformers. What is called, by part of the file:

  labels      build_oracle_targets, which calls pad_query_blocks, reduce_attention_scores and collect_eviction_schedule
  code        KVCluster.init_kv and update_kv (the features that training sees), SelectionModel with HeadWiseLinear,
              _init_weights (deviation 0.2, not the published 0.02, so that the gradient's norm passes its bound)
  evaluation  ForesightKV.update_kv with the labels' drops in place of its draw and a protected length of L, not 128
  golden, ties, step  PairwiseRankHingeLoss, main's lines from the target to the overlap and from clip_grad_norm_ to the
              scheduler's step, get_cosine_schedule_with_warmup, torch's Adam
  reward      get_sample_fields, main's lines from the entropy to the loss (train.py: the published reward;
              train_qwen2.py: mean losses of low and of high entropy), group_advantages (eight ranks, their gathering
              stubbed)
  rl, clamp   topk_prob_sample, sequence_log_probs_from_logits, main's lines of the surrogate with GRPOLoss

This file's own references, where there is no published code, are paper.* (six features a query head), reward.all and
reward.low_large (two of the paper's ablations) and pl.* (the exact probability of a drawn order).
"""
import ast
import math
import os
import sys
import types
from pathlib import Path
from typing import Optional

os.environ["ATEN_CPU_CAPABILITY"] = "default"  # Torch's vectorised exp differs from machine to machine.

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

LAYERS, KV_HEADS, GROUP, DIM = 2, 2, 2, 8
BUDGET, INTERVAL, EVENTS = 24, 8, 3
TOKENS = BUDGET + INTERVAL * (EVENTS + 1) - 3  # The last block of queries is partial.
ROLLOUTS, TAIL = 8, 63
ETA, CLIP, BETA = 1.5, 0.2, 0.05
SCHEDULE = [*range(14), 20, 100, 505, 999]
random = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=random)


class Published:
    """The authors' repository, of which single definitions and lines run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tree(self, path: str) -> ast.Module:
        return ast.parse((self.folder / path).read_text(encoding="utf-8"))

    def define(self, path: str, *names: str, **members) -> types.SimpleNamespace:
        """The file's classes, functions and constants of these names, with `members` in place of its imports."""
        found = {}
        for at in ast.walk(self.tree(path)):
            name = at.targets[0] if isinstance(at, ast.Assign) else at
            found.setdefault(getattr(name, "id" if isinstance(at, ast.Assign) else "name", None), at)
        space = self.imports() | members
        exec(compile(ast.Module([found[name] for name in names], []), path, "exec"), space)
        return types.SimpleNamespace(**{name: space[name] for name in names})

    def run(self, path: str, first: str, last: str, **space) -> dict:
        """The statements of one block from the one that begins with `first` to the one that begins with `last`."""
        for block in (getattr(at, "body", None) for at in ast.walk(self.tree(path))):
            lines = [ast.unparse(at) for at in block] if isinstance(block, list) else []
            begin = next((i for i, line in enumerate(lines) if line.startswith(first)), len(lines))
            end = next((i for i, line in enumerate(lines) if i > begin and line.startswith(last)), None)
            if end is not None:
                once = ast.parse("for once in (0,): pass")  # Some of these lines continue their loop.
                once.body[0].body = block[begin : end + 1]
                space = self.imports() | space
                exec(compile(once, path, "exec"), space)
                return space
        raise SystemExit(f"{path}: no block has lines from '{first}' to '{last}'")

    @staticmethod
    def imports() -> dict:
        return {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "math": math, "Optional": Optional}


def replay(cluster, judges, q, k, v, drop, probe=lambda *_: None) -> torch.Tensor:
    """Scores [layers, events, KV heads, B] of a forward pass whose evictions are given, as Qwen3Attention runs it."""
    scores = []
    for layer, judge in enumerate(judges):
        held = cluster(INTERVAL, BUDGET, GROUP, layer)
        keys, values = k[layer, None, :, :BUDGET], v[layer, None, :, :BUDGET]
        held.init_kv(keys, q[layer, None, :, :BUDGET])
        of_layer = []
        for event in range(EVENTS):
            block = slice(BUDGET + event * INTERVAL, BUDGET + (event + 1) * INTERVAL)
            keys = torch.cat([keys, k[layer, None, :, block]], 2)
            values = torch.cat([values, v[layer, None, :, block]], 2)

            def scorer(key, value, attention):
                probe("features", attention[0])
                return judge(key, value, attention)

            keys, values, _, score = held.update_kv(scorer, keys, q[layer, None, :, block], values, drop[layer, event])
            of_layer.append(score)
        probe("cumulative", held.cumsum_attn[0])
        probe("decayed", held.cumsum_attn_decay[0])
        scores.append(torch.stack(of_layer))
    return torch.stack(scores)


def listener(hear):
    """A scorer that hands on what it is given; its scores decide nothing where the drops are given."""

    def scorer(key, value, features):
        hear(value, features)
        return torch.zeros(*key.transpose(1, 2).shape[:3], 1)

    return scorer


def supervised(code: Published, tensors: dict) -> None:
    script = "supervised_training/train_qwen2.py"
    names = ("build_oracle_targets", "pad_query_blocks", "reduce_attention_scores", "collect_eviction_schedule",
             "LONG_SEQUENCE_THRESHOLD", "SPLIT_ATTENTION_THRESHOLD", "PairwiseRankHingeLoss",
             "get_cosine_schedule_with_warmup")
    train = code.define(script, *names)
    model = code.define("reinforcment_learning/qwen3.py", "HeadWiseLinear", "SelectionModel", "_init_weights")
    cluster = code.define("reinforcment_learning/cache.py", "KVCluster", "repeat_kv").KVCluster

    q, k, v = 1.5 * normal(LAYERS, KV_HEADS * GROUP, TOKENS, DIM), *normal(2, LAYERS, KV_HEADS, TOKENS, DIM)
    tensors |= {"q": q, "k": k, "v": v}
    drop, target = train.build_oracle_targets([(q[i, None], k[i, None]) for i in range(LAYERS)], TOKENS, BUDGET,
                                              INTERVAL, LAYERS, KV_HEADS, GROUP)
    tensors |= {"labels.drop": drop, "labels.target": target}

    heads = types.SimpleNamespace(head_dim=DIM, num_attention_heads=KV_HEADS * GROUP, num_key_value_heads=KV_HEADS)
    judges = torch.nn.ModuleList(model.SelectionModel(heads) for _ in range(LAYERS))
    torch.manual_seed(1)
    for module in judges.modules():
        model._init_weights(types.SimpleNamespace(config=types.SimpleNamespace(initializer_range=0.2)), module)

    seen = {"features": [], "cumulative": [], "decayed": []}
    phi = replay(cluster, judges, q, k, v, drop, lambda name, value: seen[name].append(value.clone()))
    tensors["code.features"] = torch.stack(seen["features"]).unflatten(0, (LAYERS, EVENTS))
    tensors |= {f"code.{name}": torch.stack(seen[name]) for name in ("cumulative", "decayed")}
    # The tokens ride along as values, so update_kv's own gather says what lies in each slot.
    places = torch.arange(TOKENS).float().view(-1, 1).expand_as(v)
    slots = []
    replay(cluster, [listener(lambda value, _: slots.append(value[0, ..., 0]))] * LAYERS, q, k, places, drop)
    tensors["code.tokens"] = torch.stack(slots).unflatten(0, (LAYERS, EVENTS)).int()
    tensors["code.phi"] = phi

    weights = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")

    def record(prefix: str, of) -> dict:
        return {f"{prefix}.{name}": torch.stack([of(judge.get_parameter(name)).clone() for judge in judges])
                for name in weights}

    tensors |= record("weights", lambda at: at.detach())
    args = types.SimpleNamespace(window_size=INTERVAL, max_norm=1.0)

    def learn(targets: torch.Tensor) -> tuple[list[float], torch.Tensor, torch.Tensor]:
        """Adds a sample's gradient; its losses by layer, its overlap, its gradient with respect to the scores."""
        scores = replay(cluster, judges, q, k, v, drop)
        scores.retain_grad()
        losses = []

        class Loss(train.PairwiseRankHingeLoss):
            def forward(self, *rows):
                losses.append(super().forward(*rows))
                return losses[-1]

        ran = code.run(script, "target = ", "with torch.no_grad()", scores=scores, indices=drop, step_scores=targets,
                       args=args, batch_losses=[], batch_accuracies=[], PairwiseRankHingeLoss=Loss)
        return torch.stack(losses).detach(), ran["batch_accuracies"][0], scores.grad

    tensors["golden.loss"], tensors["golden.overlap"], tensors["golden.phi_gradient"] = learn(target)
    tensors |= record("golden.gradient", lambda at: at.grad)

    # Targets of four values a row, but for a row of one value, which has no pairs, and one of as many as slots.
    tied = (target / target.amin(-1, keepdim=True) * 4).ceil()
    tied[0, 0, 0] = 0
    tied[0, 1, 0] = phi[0, 1, 0].detach().argsort().argsort()
    rows = phi.detach()[0].flatten(0, 1).clone()
    rows[2] = 0.125
    # Few values, so differences repeat on either side of the margin; none is the margin, where torch's versions differ.
    rows[3] = torch.tensor([0, 0.004, 0.008, 0.024])[torch.arange(BUDGET) % 4]
    rows.requires_grad_()
    loss = train.PairwiseRankHingeLoss(margin=0.01)(rows, tied[0].flatten(0, 1))
    loss.backward()
    tensors |= {"ties.phi": rows.detach(), "ties.target": tied[0].flatten(0, 1), "ties.loss": loss.detach()[None],
                "ties.phi_gradient": rows.grad}
    tensors["step.tied_target"] = tied

    norms, rates = [], []

    def clip(parameters, max_norm):
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, max_norm))

    judges.zero_grad(set_to_none=True)
    parameters = list(judges.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    scheduler = train.get_cosine_schedule_with_warmup(optimizer, 10, 1000)
    losses = []
    for step, samples in enumerate(([target], [target], [tied], [target, tied])):
        losses.append(sum(learn(sample)[0] for sample in samples))
        rates.append(optimizer.param_groups[0]["lr"])
        code.run(script, "clip_grad_norm_(", "scheduler.step()", clip_grad_norm_=clip, to_optim=parameters, args=args,
                 optimizer=optimizer, scheduler=scheduler)
        after = record("", lambda at: at.detach())
        if step == 0:
            assert all(torch.equal(value, tensors[f"weights{name}"]) for name, value in after.items())
        else:
            # The last bias moves no difference of scores: its gradient is rounding, which Adam would blow up to a step.
            tensors |= {f"step{step}{name}": value for name, value in after.items() if name != ".fc2.bias"}
    tensors |= {"step.loss": torch.stack(losses), "step.norm": torch.stack(norms),
                "step.rate": torch.tensor(rates, dtype=torch.float64)}
    evaluation(code, tensors)

    reinforced = code.define("reinforcment_learning/train.py", "get_cosine_schedule_with_warmup")
    tensors["schedule.step"] = torch.tensor(SCHEDULE)
    for name, made, rate in (("supervised", train, 1e-2), ("reinforced", reinforced, 3e-4)):
        optimizer = torch.optim.Adam([torch.zeros(1)], lr=rate)
        scheduler = made.get_cosine_schedule_with_warmup(optimizer, 10, 1000)
        rates = [rate * scheduler.lr_lambdas[0](step) for step in SCHEDULE]
        assert optimizer.param_groups[0]["lr"] == rates[0]
        tensors[f"schedule.{name}"] = torch.tensor(rates, dtype=torch.float64)


def evaluation(code: Published, tensors: dict) -> None:
    """Features of the code that generates with a trained scorer, of layer 0, which begins with all queries cached."""
    drops = iter(tensors["labels.drop"][0])
    seen = []
    q, k, v = (tensors[name][0, None] for name in "qkv")
    made = code.define("evaluation/rkv/compression/foresightkv.py", "ForesightKV", "compute_attention_scores_plus",
                       topk_prob_sample=lambda *_: next(drops)[None])
    held = made.ForesightKV(budget=BUDGET, judge_model=listener(lambda _, features: seen.append(features[0])))
    held.length = INTERVAL
    keys, values, end = k[:, :, :0], v[:, :, :0], 0
    for event in range(2):  # From the second on its decayed sum is the plain one.
        begin, end = end, BUDGET + (event + 1) * INTERVAL
        keys, values = torch.cat([keys, k[:, :, begin:end]], 2), torch.cat([values, v[:, :, begin:end]], 2)
        keys, values = held.update_kv(keys, q[:, :, :end], values)
    tensors["evaluation.features"] = torch.stack(seen)


def paper_features(code: Published, tensors: dict) -> None:
    """Six features a query head; where training's code has the same sum, the two are compared."""
    budget, interval, dim = 36, 33, 4
    tokens = budget + EVENTS * interval
    q, k = 1.5 * normal(KV_HEADS * GROUP, tokens, dim), normal(KV_HEADS, tokens, dim)
    drop = torch.stack([torch.randperm(budget, generator=random)[:interval] for _ in range(EVENTS * KV_HEADS)])
    drop = drop.view(EVENTS, KV_HEADS, interval).sort(-1).values

    held = code.define("reinforcment_learning/cache.py", "KVCluster", "repeat_kv").KVCluster(interval, budget, GROUP)
    held.init_kv(k[None, :, :budget], q[None, :, :budget])
    keys, seen = k[None, :, :budget], []

    def attention(queries: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
        """Causal probabilities [group, queries, keys] of the newest queries against one head's cache."""
        logits = queries @ cached.T / dim**0.5
        ahead = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1 + len(cached) - queries.shape[-2])
        return logits.masked_fill(ahead, -torch.inf).softmax(-1)

    heads = q.unflatten(0, (KV_HEADS, GROUP))
    slots = [torch.arange(budget)] * KV_HEADS
    running = [attention(heads[h, :, :budget], k[h, :budget]).sum(1) for h in range(KV_HEADS)]
    decayed = list(running)
    features = []
    for event in range(EVENTS):
        block = torch.arange(budget + event * interval, budget + (event + 1) * interval)
        for h in range(KV_HEADS):
            slots[h] = torch.cat([slots[h], block])
            probabilities = attention(heads[h][:, block], k[h, slots[h]])
            window = {w: probabilities[:, -w:].sum(1) for w in (8, 16, 32, interval)}
            old, new = window[interval].split([budget, interval], 1)
            running[h], decayed[h] = running[h] + old, 0.9 * decayed[h] + old
            parts = [at[:, :budget] for at in (*window.values(), running[h], decayed[h])]
            features.append(torch.cat(parts).T)
            stay = torch.ones(budget, dtype=torch.bool).scatter_(0, drop[event, h], False)
            running[h], decayed[h] = (torch.cat([at[:, stay], new], 1) for at in (running[h], decayed[h]))
            slots[h] = torch.cat([slots[h][:budget][stay], block])
        keys = torch.cat([keys, k[None, :, block]], 2)
        scorer = listener(lambda _, attention: seen.append(attention[0]))
        keys = held.update_kv(scorer, keys, q[None, :, block], keys, drop[event])[0]
    features = torch.stack(features).unflatten(0, (EVENTS, KV_HEADS))
    same = torch.stack(seen)[..., [4, 5, 12, 13, 14, 15]]
    assert torch.allclose(features[..., 6:], same, rtol=1e-5, atol=1e-6)
    tensors |= {"paper.q": q, "paper.k": k, "paper.drop": drop, "paper.features": features}


def rewards(code: Published, tensors: dict) -> None:
    tokens = BUDGET + INTERVAL + TAIL
    entropy, original = torch.empty(2, tokens).exponential_(generator=random)
    jump = torch.rand(ROLLOUTS, tokens, generator=random) < torch.linspace(0, 0.2, ROLLOUTS)[:, None]
    evicted = original + 0.3 * normal(ROLLOUTS, tokens).abs()
    evicted += jump * 3 * torch.rand(ROLLOUTS, tokens, generator=random)
    # A loss that grows by the threshold itself does not count.
    lowest = BUDGET + INTERVAL + entropy[BUDGET + INTERVAL :].argmin()
    original[lowest], evicted[:, lowest] = 1, 1 + ETA
    tensors |= {"reward.entropy": entropy, "reward.original": original, "reward.evicted": evicted}

    train = code.define("reinforcment_learning/train.py", "get_sample_fields", "group_advantages", dist=None)
    sample = {"input_ids": None, "loss": 0.0, "loss2": original[None], "entropy": entropy[None]}
    values = {name: [] for name in ("code", "low", "high", "all", "low_large")}
    for lm_loss in evicted:
        _, _, loss2, of_sample = train.get_sample_fields(sample, "cpu")
        given = {"entropy": of_sample, "loss2": loss2, "lm_loss": lm_loss, "window": INTERVAL, "budget": BUDGET,
                 "print": lambda *_: None}
        ran = code.run("reinforcment_learning/train.py", "entropy_tail =", "new_loss =", **given)
        values["code"].append(-ran["new_loss"])
        large = ran["delta"] < -ETA
        values["low_large"].append(-(ran["loss_low"] * large).mean())
        ran = code.run("reinforcment_learning/train_qwen2.py", "entropy_tail =", "new_loss =", **given)
        values["low"].append(-ran["new_loss"])
        values["high"].append(-ran["loss_high"])
        values["all"].append(-lm_loss[BUDGET + INTERVAL :].mean())
    tensors |= {f"reward.{name}": torch.stack(of) for name, of in values.items()}

    def all_gather(gathered: list, _) -> None:
        gathered[:] = tensors["reward.code"].split(1)

    ranks = types.SimpleNamespace(get_world_size=lambda: ROLLOUTS, all_gather=all_gather)
    gather = code.define("reinforcment_learning/train.py", "group_advantages", dist=ranks)
    tensors["reward.advantage"] = gather.group_advantages(tensors["reward.code"][:1])[2]


def surrogate(code: Published, scores, new, reference, drop, advantage) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and its gradient by the new scores, all of [layers, events, 1 rollout, KV heads, B or L]."""
    train = code.define("reinforcment_learning/train.py", "sequence_log_probs_from_logits")
    made = code.define("reinforcment_learning/loss.py", "GRPOLoss", "approx_kl_divergence")
    new = new.clone().requires_grad_()
    ran = code.run("reinforcment_learning/train.py", "loss_total =", "loss_total.backward()", scores=scores,
                   new_scores=new, init_scores=reference, indices=drop, advantages=advantage[None],
                   num_layers=len(scores), args=types.SimpleNamespace(rollouts_per_step=1),
                   objective=made.GRPOLoss(CLIP, BETA),
                   sequence_log_probs_from_logits=train.sequence_log_probs_from_logits)
    return ran["loss_total"].detach(), new.grad


def reinforced(code: Published, tensors: dict) -> None:
    sample = code.define("reinforcment_learning/cache.py", "topk_prob_sample").topk_prob_sample
    log_prob = code.define("reinforcment_learning/train.py", "sequence_log_probs_from_logits")
    old = 1.5 * normal(LAYERS, EVENTS, 1, KV_HEADS, BUDGET)
    new, reference = old + 0.25 * normal(*old.shape), old + 0.4 * normal(*old.shape)
    torch.manual_seed(2)
    drop = sample(old, 2 * INTERVAL, INTERVAL)
    advantage = torch.stack(list(tensors["reward.advantage"].aminmax()))
    made = [surrogate(code, old, new, reference, drop, at) for at in advantage]
    each = {"old": old, "new": new, "reference": reference}
    tensors |= {f"rl.phi_{name}": at.squeeze(2) for name, at in each.items()}
    tensors |= {f"rl.log_prob_{name}": log_prob.sequence_log_probs_from_logits(at, drop)[0].squeeze(2)
                for name, at in each.items()}
    tensors |= {"rl.drop": drop.squeeze(2), "rl.advantage": advantage, "rl.loss": torch.stack([at[0] for at in made]),
                "rl.phi_gradient": torch.stack([at[1].squeeze(2) for at in made])}

    # One row whose log-ratios pass 10 on either side, where the gradient ends.
    shape = (1, 1, 1, 1, -1)
    past = -0.6 * torch.arange(BUDGET).float()
    now = past.clone()
    now[0], now[20] = -14, 1
    gone = torch.tensor([0, 20, 1, 2, 3, 5, 7, 9])
    made = [surrogate(code, past.view(shape), now.view(shape), now.view(shape), gone.view(shape), torch.tensor(at))
            for at in (-1.0, 1.0)]
    tensors |= {"clamp.phi_old": past, "clamp.phi_new": now, "clamp.drop": gone,
                "clamp.loss": torch.stack([at[0] for at in made]),
                "clamp.phi_gradient": torch.stack([at[1].flatten() for at in made])}

    # The drawn order's exact probability: each draw's share among the candidates not yet drawn.
    among = old.topk(2 * INTERVAL).indices.squeeze(2)
    scores = {"old": old.squeeze(2).double(), "new": new.squeeze(2).double().requires_grad_()}
    for name, at in scores.items():
        rest = torch.zeros_like(at).bool().scatter_(-1, among, True)
        total = torch.zeros(at.shape[:-1], dtype=torch.float64)
        for draw in range(INTERVAL):
            one = drop.squeeze(2)[..., draw, None]
            total = total + (at.gather(-1, one)[..., 0] - at.masked_fill(~rest, -torch.inf).logsumexp(-1))
            rest = rest.scatter(-1, one, False)
        tensors[f"pl.log_prob_{name}"] = total.detach().float()
    total.sum().backward()
    tensors |= {"pl.candidates": among, "pl.phi_gradient": scores["new"].grad.float()}


def main() -> None:
    torch.set_num_threads(1)
    code = Published(Path(sys.argv[1]))
    tensors = {}
    supervised(code, tensors)
    paper_features(code, tensors)
    rewards(code, tensors)
    reinforced(code, tensors)
    tensors = {name: at.detach().int() if at.dtype == torch.int64 else at.detach() for name, at in tensors.items()}
    target = Path(__file__).with_name("expected.safetensors")
    save_file({name: at.contiguous().clone() for name, at in tensors.items()}, target)
    for name, at in sorted(tensors.items()):
        print(name, tuple(at.shape), str(at.dtype).removeprefix("torch."))
    print(f"torch {torch.__version__}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
