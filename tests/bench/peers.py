"""Peers of our kernels, timed as kvlab_bench times ours: CUDA events, cold L2, the same shapes and sample counts,
each recorded as a CUDA graph.

cudnn and flash: torch's scaled_dot_product_attention with that backend forced; of training without a bias, which ours
has, and backward not recorded: what autograd launches would leave the stream that records, and takes milliseconds.
torch: its linear (cuBLAS or cuBLASLt) and its topk, unsorted, which returns the scores and their indices where ours marks.
"""

import re

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
Q_HEADS, KV_HEADS = 32, 8  # as tests/bench/attention.h
THOUSAND = {"": 1, "K": 1024}


def versions():
    return {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def attention(backend, q, k, v, causal):
    def run():
        with sdpa_kernel(ATTENTION[backend]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return run


def attention_backward(backend, q, k, v):
    for operand in (q, k, v):
        operand.requires_grad_()
    output = attention(backend, q, k, v, True)()
    gradient = torch.randn_like(output)

    def run():
        torch.autograd.grad(output, (q, k, v), gradient, retain_graph=True)

    run.is_recorded = False
    return run


def operations(kernel, shape):
    """(peer, operation) for each peer of a benchmark of ours; operands are made when the operation is asked for."""
    whole = kernel in ("prefill", "biased_attention", "biased_attention_backward")
    prefill = re.fullmatch(r"(\d+)(K?) d(\d+)", shape) if whole else None
    decode = re.fullmatch(r"(\d+)x(\d+)(K?) d(\d+)", shape) if kernel == "decode" else None
    linear = re.fullmatch(r"(\d+)x(\d+)x(\d+)", shape) if kernel == "linear" else None
    selection = re.fullmatch(r"(\d+)x(\d+)(K?) keep (\d+)(%?)", shape) if kernel.startswith("select_") else None
    if prefill:
        tokens, dim = int(prefill[1]) * THOUSAND[prefill[2]], int(prefill[3])
        q, k, v = (random(1, heads, tokens, dim) for heads in (Q_HEADS, KV_HEADS, KV_HEADS))
        for backend in ATTENTION:
            is_backward = kernel == "biased_attention_backward"
            yield backend, attention_backward(backend, q, k, v) if is_backward else attention(backend, q, k, v, True)
    elif decode:
        # Decode's K is a thousand: 100K is 100 000 tokens.
        batch, tokens, dim = int(decode[1]), int(decode[2]) * (1000 if decode[3] else 1), int(decode[4])
        q, k, v = (random(batch, heads, length, dim)
                   for heads, length in ((Q_HEADS, 1), (KV_HEADS, tokens), (KV_HEADS, tokens)))
        for backend in ATTENTION:
            yield backend, attention(backend, q, k, v, False)
    elif linear:
        rows, width, out = (int(n) for n in linear.groups())
        x, weight = random(rows, width), random(out, width)
        yield "torch", lambda: F.linear(x, weight)
    elif selection:
        heads, tokens = int(selection[1]), int(selection[2]) * THOUSAND[selection[3]]
        kept = int(selection[4]) * tokens // 100 if selection[5] else int(selection[4])
        scores = torch.randn(heads, tokens, device="cuda")
        if kernel == "select_pooled":
            scores, kept = scores.flatten(), heads * kept
        yield "torch", lambda: torch.topk(scores, kept, sorted=False)


class Events:
    def __init__(self):
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.zeros(l2, device="cuda")  # four times the L2, in bytes
        self.sum = torch.zeros((), device="cuda")

    def seconds(self, operation):
        torch.sum(self.flush, 0, out=self.sum)  # reads, as kvlab_bench does
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        operation()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3


def recorded(operation):
    """The operation as a CUDA graph: torch's own time on the host, longer than a short kernel, is not the peer's."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        operation()  # what is done once, such as choosing a plan, cannot be recorded
    aside.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation()
    return graph.replay


def samples(events, operation):
    if getattr(operation, "is_recorded", True):
        operation = recorded(operation)
    events.seconds(operation)
    count = min(max(int(0.25 / events.seconds(operation)), 10), 50)
    return [events.seconds(operation) for _ in range(count)]


def quantile(sorted_values, q):
    place = q * (len(sorted_values) - 1)
    low = int(place)
    high = min(low + 1, len(sorted_values) - 1)
    return sorted_values[low] + (sorted_values[high] - sorted_values[low]) * (place - low)


def measure(benchmarks, log):
    """Entries of the peers of `benchmarks`, in the same form; a peer that refuses a shape is logged and left out."""
    events, found = Events(), []
    for ours in benchmarks:
        for peer, operation in operations(ours["kernel"], ours["shape"]):
            try:
                seconds = sorted(samples(events, operation))
            except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                log(f"{peer}: {ours['kernel']}/{ours['shape']}: {str(error).splitlines()[0]}")
                continue
            found.append(ours | {"by": peer, "samples": len(seconds), "median_s": quantile(seconds, 0.5),
                                 "low_s": quantile(seconds, 0.25), "high_s": quantile(seconds, 0.75)})
    return found
