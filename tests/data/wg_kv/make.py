#!/usr/bin/env python3
"""Makes expected.safetensors of this folder anew: what the released codes of WG-KV and Quest make of seeded tensors.

Needs torch, einops and safetensors, WG-KV's repository (EMCLab-Sinica/WG-KV, src/modeling_layers.py as of 6f98f4a) and
Quest's (mit-han-lab/Quest, quest/tests as of ade6f7c). Of their files the functions named below are called, in f32 on
the host; their imports (transformers, vLLM, Triton, Quest's kernels) are left out, and these take the place of what
needs a GPU or a model:
- gates are the given ones: g_predictors looks them up by the position that every value carries in its first element;
- prefill_kernel gives nothing, decode_kernel_handle notes the entries that the kernel would read, block by block;
- generate_sparse_indices, which only tells prefill_kernel what to read and takes windows of 64 alone, gives nothing.

  make.py FOLDER_OF_WG_KV FOLDER_OF_QUEST
"""
import ast
import copy
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from einops import rearrange
from safetensors.torch import save_file

HERE = Path(__file__).parent
LAYERS, HEADS, GROUP, DIM = 2, 2, 2, 8
QUERY_HEADS = HEADS * GROUP
TOKENS, PROMPT, WINDOW, PAGE = 160, 70, 16, 16
TAU, RATES = 0.1, ((0.6, 0.35), (0.25, 0.1))
CAPACITY, DROP = 24 * LAYERS * HEADS, 0.1
LENGTHS = (100, 112, 113, 127, 128, 129, 144, 159, 160)  # of the cache with the query that reads
WG_KV_BUDGETS, OFFICIAL_BUDGETS = (33, 64), (2, 4)  # in tokens, in pages
MARGIN = 1e-4  # of what is cut off and what is not, so that no sum's last bits decide


class CheckedTorch:
    """torch, but that it notes what topk chose from, and for which (layer, head) of its caller nearly by a tie."""

    def __init__(self):
        self.ranked, self.close = [], []

    def __getattr__(self, name):
        return getattr(torch, name)

    def topk(self, values, k, largest=True, **options):
        ordered = values.sort(descending=largest).values
        if k < len(ordered) and abs(ordered[k] - ordered[k - 1]) <= MARGIN * abs(ordered[k]):
            caller = sys._getframe(1).f_locals
            self.close.append((caller.get("layer_idx"), caller.get("h")))
        self.ranked.append(values.clone())
        return torch.topk(values, k, largest=largest, **options)


def functions_of(path: Path, names, **known):
    known = dict(known)
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            exec(compile(ast.Module([node], []), str(path), "exec"), known)
    return SimpleNamespace(**{name: known[name] for name in names}), known


def draw(*shape, scale, generator):
    return (torch.randn(*shape, generator=generator) * scale).half().float()


def draw_gates(generator):
    rates = torch.tensor(RATES)[:, None, :]
    stays = torch.rand(LAYERS, TOKENS, HEADS, generator=generator) < rates
    size = torch.rand(LAYERS, TOKENS, HEADS, generator=generator)
    gates = torch.where(stays, 0.11 + 0.88 * size, 0.001 + 0.088 * size)
    # Equal to the threshold is not above it; the next float is.
    threshold = torch.tensor(TAU)
    gates[:, 5::41] = threshold
    gates[:, 7::41] = threshold.nextafter(torch.tensor(1.0))
    return gates


class Released:
    """WG-KV's cache over the layers' attention modules, as its inference drives them."""

    NAMES = ("quest_select_blocks", "snapkv_record_queries", "snapkv_evict", "migrate_local_kv_to_global",
             "get_layer_local_kv_views", "refresh_local_is_global", "prefill_wrapper", "decode_wrapper",
             "self_attn_forward_patch_inference")

    def __init__(self, folder: Path, gates, **changes):
        self.torch = CheckedTorch()
        code, known = functions_of(folder / "src" / "modeling_layers.py", self.NAMES, torch=self.torch,
                                   rearrange=rearrange)
        known["generate_sparse_indices"] = lambda *_: (None,) * 4
        self.code, self.gates, self.cache = code, gates, SimpleNamespace()
        options = dict(
            num_hidden_layers=LAYERS, num_attention_heads=QUERY_HEADS, num_key_value_heads=HEADS, block_size=PAGE,
            local_window_size=WINDOW, g_threshold=TAU, g_expand=1.5, random_sparsity=None, g_defer=False,
            use_baseline=False, max_total_tokens=LAYERS * HEADS * TOKENS * 2, max_tokens_per_head=TOKENS + WINDOW,
            use_quest=False, quest_token_budget=None, snapkv_enabled=False, snapkv_max_cached_tokens=-1,
            snapkv_evict_ratio=0.0, snapkv_window_size=WINDOW, snapkv_kernel_size=5)
        self.config = SimpleNamespace(**options | changes)
        self.read = [None] * LAYERS
        self.modules = [self.module(layer) for layer in range(LAYERS)]

    def module(self, layer):
        def note(query, k_cache, v_cache, lengths, table, scale):
            blocks = [v_cache[table[0, h].long(), :, 0].reshape(-1)[: lengths[0, h]] for h in range(HEADS)]
            self.read[layer] = [sorted(positions.int().tolist()) for positions in blocks]
            return lambda: None

        return SimpleNamespace(
            config=self.config, layer_idx=layer, head_dim=DIM, num_key_value_groups=GROUP, scaling=DIM**-0.5,
            g_predictors=lambda pre_key, key, value: self.gates_of(layer, value), prefill_kernel=lambda *_, **__: None,
            decode_kernel_handle=note, decode_kernel_executor=lambda handle: handle(),
            prefill_wrapper=self.code.prefill_wrapper, decode_wrapper=self.code.decode_wrapper)

    def gates_of(self, layer, value):
        return torch.stack([self.gates[layer, value[0, h, :, 0].long(), h] for h in range(HEADS)])[None]

    def run(self, queries, keys, first, end):
        """The tokens [first, end) as one prompt, or as one step."""
        for layer, module in enumerate(self.modules):
            of_heads = lambda tensor: tensor[layer, first:end].transpose(0, 1)[None]
            value = torch.zeros(1, HEADS, end - first, DIM)
            value[..., 0] = torch.arange(first, end)
            deferred = self.config.g_defer and end - first == 1
            self.code.self_attn_forward_patch_inference(
                module, self.cache, (1, end - first), of_heads(queries), of_heads(keys), of_heads(keys), value,
                None if deferred else module.g_predictors(None, None, value))

    def blocks(self, layer, head):
        """Of the promoted entries."""
        first, length = WINDOW // PAGE, int(self.cache.global_lengths[layer, head])
        return self.cache.block_table[layer, head, first:first + -(-length // PAGE)].long(), length

    def held(self):
        """Positions of each (layer, head): what the ring and the global blocks hold."""
        pool = self.cache.block_pool_v[:, 0].view(-1, PAGE)
        rows = []
        for layer in range(LAYERS):
            for head in range(HEADS):
                ring = pool[self.cache.block_table[layer, head, :WINDOW // PAGE].long()].reshape(-1)
                blocks, length = self.blocks(layer, head)
                positions = [*pool[blocks].reshape(-1)[:length], *ring[: self.cache.local_length]]
                assert len(set(positions)) == len(positions)
                rows.append(sorted(int(position) for position in positions))
        return rows

    def steps(self, queries, keys, prompt=PROMPT):
        """Yields the cache's length without any loss after the prompt and every token behind it."""
        self.run(queries, keys, 0, prompt)
        yield prompt
        for token in range(prompt, TOKENS):
            self.run(queries, keys, token, token + 1)
            yield token + 1


def packed(positions):
    bits = torch.zeros(TOKENS // 8, dtype=torch.uint8)
    for position in positions:
        bits[position // 8] |= 1 << position % 8
    return bits


def rule(gates, length):
    """What the documents of this repository say that the newest of so many tokens sees."""
    return [[p for p in range(length) if length - 1 - p < WINDOW or gates[layer, p, head] > TAU]
            for layer in range(LAYERS) for head in range(HEADS)]


def held_sets(folder, gates, queries, keys):
    sets = []
    for defers in (False, True):
        released = Released(folder, gates, g_defer=defers)
        for length in released.steps(queries, keys):
            held = released.held()
            assert held == rule(gates, length)
            assert length == PROMPT or sum(released.read, []) == held
            if not defers:
                sets.append(torch.stack([packed(positions) for positions in held]))
    # A prompt within the window, whose ring fills token by token.
    released = Released(folder, gates)
    for length in released.steps(queries, keys, prompt=9):
        assert released.held() == rule(gates, length)
    return torch.stack(sets)


def evicted_sets(folder, gates, queries, keys, generator):
    """Where a tie would decide an event, the heads' queries since the last one are drawn anew."""
    released = Released(folder, gates, snapkv_enabled=True, snapkv_max_cached_tokens=CAPACITY,
                        snapkv_evict_ratio=DROP)
    released.run(queries, keys, 0, PROMPT)
    sets, events = [released.held()], [released.cache.snapkv_evict_count]
    assert events == [0]
    while (done := PROMPT + len(sets) - 1) < TOKENS:
        before = copy.deepcopy(released.cache)
        for end in range(done + 1, TOKENS + 1):
            released.run(queries, keys, end - 1, end)
            if released.cache.snapkv_evict_count > events[-1]:
                break
        if released.torch.close:
            for layer, head in released.torch.close:
                queries[layer, done:end, head * GROUP:(head + 1) * GROUP] = draw(end - done, GROUP, DIM, scale=2,
                                                                                 generator=generator)
            released.torch.close.clear()
            released.cache = before
            continue
        # Again, now that they stand, to see every step.
        released.cache = before
        for token in range(done, end):
            released.run(queries, keys, token, token + 1)
            sets.append(released.held())
            events.append(released.cache.snapkv_evict_count)
    return torch.stack([torch.stack([packed(row) for row in rows]) for rows in sets]), torch.tensor(
        events, dtype=torch.int32)


def wg_kv_quest(folder, queries, keys):
    """Everything is promoted, so that its blocks are those of a cache in order of position."""
    tensors, everything = {}, torch.ones(LAYERS, TOKENS, HEADS)
    read, scores = [], torch.zeros(LAYERS, len(LENGTHS), HEADS, TOKENS // PAGE - 1)
    for budget in WG_KV_BUDGETS:
        released = Released(folder, everything, use_quest=True, quest_token_budget=budget)
        of_budget = []
        for length in released.steps(queries, keys):
            if length in LENGTHS:
                of_budget.append(torch.stack([packed(positions) for positions in sum(released.read, [])]))
                assert not released.torch.close
                for i, ranked in enumerate(released.torch.ranked):
                    scores[i // HEADS, LENGTHS.index(length), i % HEADS, : len(ranked)] = ranked
            released.torch.ranked.clear()
            released.torch.close.clear()
        read.append(torch.stack(of_budget))
    return {"quest.read": torch.stack(read), "quest.scores": scores, "quest.bounds": bounds_of(released)}


def bounds_of(released):
    """Of full blocks; 0 behind them."""
    bounds = torch.zeros(LAYERS, HEADS, TOKENS // PAGE - 1, 2, DIM)
    for layer in range(LAYERS):
        for head in range(HEADS):
            blocks, length = released.blocks(layer, head)
            full = blocks[: length // PAGE]
            bounds[layer, head, : len(full), 0] = released.cache.quest_block_key_min[full]
            bounds[layer, head, : len(full), 1] = released.cache.quest_block_key_max[full]
    return bounds.half()


def admitted_bounds(folder, gates, queries, keys):
    released = Released(folder, gates, use_quest=True, quest_token_budget=TOKENS)
    for _ in released.steps(queries, keys):
        pass
    return bounds_of(released)


def official_quest(folder, queries, keys):
    tests = folder / "quest" / "tests"
    attention, _ = functions_of(tests / "test_approx_attention.py", ["_ref_self_approx_attention"], torch=torch,
                                nn=torch.nn, math=math)
    estimate, _ = functions_of(tests / "test_estimate.py", ["_ref_cpu_estimate"], torch=torch)
    shape = (LAYERS, len(LENGTHS), QUERY_HEADS)
    scores = torch.zeros(*shape, TOKENS // PAGE - 1)
    pages = torch.zeros(len(OFFICIAL_BUDGETS), *shape, dtype=torch.int32)
    outputs = torch.zeros(*shape, DIM)  # of the largest budget
    for layer in range(LAYERS):
        for i, length in enumerate(LENGTHS):
            query = queries[layer, length - 1:length]
            key = keys[layer, :length].repeat_interleave(GROUP, dim=1)
            of_pages = estimate._ref_cpu_estimate(query, key, key, PAGE)
            scores[layer, i, :, : of_pages.shape[1]] = of_pages
            for b, budget in enumerate(OFFICIAL_BUDGETS):
                output, chosen = attention._ref_self_approx_attention(query, key, key, PAGE, budget)
                outputs[layer, i] = output[0]
                for head in range(QUERY_HEADS):
                    checked = CheckedTorch()
                    checked.topk(of_pages[head], budget - 1)
                    assert not checked.close
                    bits = {int(page) for page in chosen.view(QUERY_HEADS, -1)[head]} | {(length - 1) // PAGE}
                    pages[b, layer, i, head] = sum(1 << page for page in bits)
    return {"official.scores": scores, "official.pages": pages, "official.outputs": outputs}


def main() -> None:
    torch.set_num_threads(1)
    wg_kv, quest = Path(sys.argv[1]), Path(sys.argv[2])
    generator = torch.Generator().manual_seed(4)
    gates = draw_gates(generator)
    keys = draw(LAYERS, TOKENS, HEADS, DIM, scale=1, generator=generator)
    queries = draw(LAYERS, TOKENS, QUERY_HEADS, DIM, scale=2, generator=generator)
    evicted, events = evicted_sets(wg_kv, gates, queries, keys, generator)
    tensors = {"gates": gates, "keys": keys.half(), "queries": queries.half(),
               "held": held_sets(wg_kv, gates, queries, keys), "evicted.held": evicted, "evicted.events": events,
               "quest.admitted_bounds": admitted_bounds(wg_kv, gates, queries, keys),
               **wg_kv_quest(wg_kv, queries, keys), **official_quest(quest, queries, keys),
               "quest.lengths": torch.tensor(LENGTHS, dtype=torch.int32)}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, HERE / "expected.safetensors")
    print({name: tuple(tensor.shape) for name, tensor in tensors.items()}, events.tolist())


if __name__ == "__main__":
    main()
