#!/usr/bin/env python3
"""Makes expected.safetensors of this folder: one step of training gates on tests/data/llama, by torch's autograd; and
one_layer.safetensors: what TRIM-KV's gate of one layer makes of drawn inputs.

Needs torch, numpy and safetensors. The model is written out below, in f64, from what papers and released codes say;
nothing of kvlab or transformers runs. Parameters are drawn, rounded to bf16 and of the layout that the released
modules have: WG-KV's GatingPredictor (EMCLab-Sinica/WG-KV, src/modeling_layers.py: grouped convolutions of one tap, a
group a KV head) and TRIM-KV's RetentionGate10 (linear1, linear2, and linear3 and bias, which all layers share). Plain
sums over the stored tensors give the same gates, or this fails, as it does where a gradient is not the slope of its
loss, by central differences. Two texts of different length make the batch, and each sees only itself.

  make.py [GATING_PREDICTOR.py RETENTION_GATE.py]

With the files that hold the released classes (WG-KV's src/modeling_layers.py and, of TRIM-KV, a modeling_trimkv_*.py with
RetentionGate10 and RetentionGate) these run, too, with the same parameters on what the gates read, and nothing is written: their gates
are the stored ones, or this fails.

- wg_kv: the logit of query i and key j has log(max(g_j, 1e-3)) added where i - j >= WINDOW. The loss is the mean over
  all elements of all tokens of (student's hidden state after the last norm - teacher's)^2, plus SPARSITY times the mean
  over layers, tokens and KV heads of o + (1 - o)(1 - (1 - g)^2), o = min(1, WINDOW / (T - s)) for token s of T.
  The released code's predictor clamps its gates, so its sparsity sees max(g, 1e-3), too: released_sparsity.
- retention: the logit has (i - j) log beta_j added. The loss is half of KL(teacher || student) plus half of the next
  token's cross entropy, in nats, each the mean over the tokens that have a next one in their text, plus the capacity
  loss: with S(t) the sum over layers, KV heads and tokens i <= t of beta_i^(t - i), and n = layers * KV heads, the mean
  over tokens of S > n CAPACITY of (S - n CAPACITY) / max(1, n t - n CAPACITY), t from 0 in each text. The local form,
  of which the value alone is written, has n = 1 and takes the mean over layers and heads, too.
- duo: attention's output is alpha times the full one plus 1 - alpha times that of the first SINKS keys and those with
  i - j < WINDOW. The loss is the distance as of wg_kv, plus LOCALITY times the mean alpha.

Gates are not detached from what they read: lower layers' gradients come through them, too.
"""
import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from torch import nn

HERE = Path(__file__).parent
MODEL = HERE.parent / "llama"
TEXTS = (48, 33)  # tokens
WINDOW, SINKS = 4, 2
EXPAND, LEAST, SPARSITY = 1.5, 1e-3, 0.04
RETENTION_UNITS, CAPACITY = 8, 4
ONE_LAYER = 24, 8, 3, 40  # width, units, heads, tokens
LOCALITY = 0.05
STEP = 1e-6  # of differences
MARGIN = 1e-3  # relative, of what a threshold parts, so that f32 parts it alike


class Model:
    """Hugging Face's Llama."""

    def __init__(self, folder: Path):
        config = json.loads((folder / "config.json").read_text())
        self.layers, self.width = config["num_hidden_layers"], config["hidden_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim, self.epsilon = config["head_dim"], config["rms_norm_eps"]
        self.group = self.heads // self.kv_heads
        theta = config["rope_parameters"]["rope_theta"]
        self.frequencies = 1 / theta ** (torch.arange(0, self.dim, 2).float() / self.dim)
        self.weights = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}

    def linear(self, name: str, x):
        return x @ self.weights[name + ".weight"].T

    def norm(self, name: str, x):
        return rms_normed(x, self.epsilon) * self.weights[name + ".weight"]

    def rotated(self, x):
        """x is [tokens, heads, dim]; the first half of a head's values are paired with the second. Angles are of f32,
        part of what a model is: at 400 tokens, what is rounded off moves losses by some 1e-5."""
        angles = (torch.arange(len(x))[:, None, None] * self.frequencies).double()
        first, second = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def attend(self, queries, keys, values, bias=None):
        """bias is [kv_heads, queries, keys], -inf where a key is not seen; all see what came before them alone."""
        grouped = queries.view(len(queries), self.kv_heads, self.group, self.dim)
        logits = torch.einsum("ihgd,jhd->hgij", grouped, keys) * self.dim**-0.5
        if bias is not None:
            logits = logits + bias[:, None]
        later = torch.ones(len(queries), len(queries), dtype=torch.bool).triu(1)
        shares = logits.masked_fill(later, -torch.inf).softmax(-1)
        return torch.einsum("hgij,jhd->ihgd", shares, values).reshape(len(queries), -1)

    def hidden(self, ids, attention=None):
        """After the last norm. attention(layer, x, queries, pre-RoPE keys, keys, values) gives [tokens, width]."""
        attention = attention or (lambda layer, x, queries, pre_rope, keys, values: self.attend(queries, keys, values))
        x = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            normed = self.norm(name + "input_layernorm", x)
            queries, pre_rope, values = (
                self.linear(name + f"self_attn.{part}_proj", normed).view(len(ids), -1, self.dim) for part in "qkv")
            output = attention(layer, normed, self.rotated(queries), pre_rope, self.rotated(pre_rope), values)
            x = x + self.linear(name + "self_attn.o_proj", output)
            normed = self.norm(name + "post_attention_layernorm", x)
            gate = nn.functional.silu(self.linear(name + "mlp.gate_proj", normed))
            x = x + self.linear(name + "mlp.down_proj", gate * self.linear(name + "mlp.up_proj", normed))
        return self.norm("model.norm", x)

    def log_probabilities(self, hidden):
        return self.linear("lm_head", hidden).log_softmax(-1)


def rms_normed(x, epsilon):
    return x * (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()


def ages(tokens: int):
    """i - j of query i and key j."""
    return torch.arange(tokens)[:, None] - torch.arange(tokens)


class GateNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=torch.float64))

    def forward(self, x):
        return rms_normed(x, 1e-6) * self.weight


class WriteGate(nn.Module):
    """A layer's; the two norms are shared by its KV heads. Gates are [tokens, kv_heads], not clamped."""

    def __init__(self, model: Model):
        super().__init__()
        units, heads = int(model.dim * EXPAND), model.kv_heads
        self.pre_key_norm, self.post_key_norm = GateNorm(model.dim), GateNorm(model.dim)
        self.conv1 = nn.Conv1d(heads * 2 * model.dim, heads * units, 1, groups=heads, dtype=torch.float64)
        self.conv2 = nn.Conv1d(heads * units, heads, 1, groups=heads, dtype=torch.float64)

    def forward(self, pre_rope, keys):
        inputs = torch.cat((self.pre_key_norm(pre_rope), self.post_key_norm(keys)), dim=-1)
        hidden = nn.functional.gelu(self.conv1(inputs.reshape(len(keys), -1).T[None]))
        return self.conv2(hidden)[0].T.sigmoid()


class RetentionGate(nn.Module):
    """A layer's: log beta [tokens, kv_heads]."""

    def __init__(self, model: Model, linear3, bias):
        super().__init__()
        self.linear1 = nn.Linear(model.width, RETENTION_UNITS, dtype=torch.float64)
        self.linear2 = nn.Linear(RETENTION_UNITS, RETENTION_UNITS, dtype=torch.float64)
        self.linear3, self.bias = linear3, bias

    def forward(self, x):
        hidden = nn.functional.silu(self.linear2(nn.functional.silu(self.linear1(x))))
        return nn.functional.logsigmoid(self.linear3(hidden) + self.bias)


class OneLayerGate(nn.Module):
    """TRIM-KV's RetentionGate ("rg"), without linear2 of the other: log beta [tokens, kv_heads]."""

    def __init__(self, width, units, heads):
        super().__init__()
        self.linear1 = nn.Linear(width, units, dtype=torch.float64)
        self.linear2 = nn.Linear(units, heads, bias=False, dtype=torch.float64)
        self.bias = nn.Parameter(torch.zeros(heads, dtype=torch.float64))

    def forward(self, x):
        return nn.functional.logsigmoid(self.linear2(nn.functional.silu(self.linear1(x))) + self.bias)


def draw(parameter, generator, scale, middle=0.0):
    with torch.no_grad():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale + middle
        parameter.copy_(values.bfloat16())


class Step:
    """What a method's parameters and its loss are; results() of them all, after checks."""

    name: str

    def parameters(self) -> dict:
        """Stored name -> the tensors, one a layer or one alone, and the shape of each in the file."""
        raise NotImplementedError

    def losses(self) -> dict:
        """Among them "loss", which is differentiated and not stored; and what else is stored."""
        raise NotImplementedError

    def gradients(self):
        tensors = [tensor for owners, _ in self.parameters().values() for tensor in owners]
        return torch.autograd.grad(self.losses()["loss"], tensors)

    def check_slopes(self, gradients) -> None:
        """In a random direction of each tensor, and of its largest slope."""
        generator = torch.Generator().manual_seed(9)
        tensors = [tensor for owners, _ in self.parameters().values() for tensor in owners]
        for tensor, gradient in zip(tensors, gradients):
            largest = torch.zeros_like(gradient)
            largest.view(-1)[gradient.abs().argmax()] = 1
            for direction in (torch.randn(tensor.shape, generator=generator, dtype=torch.float64), largest):
                start, ends = tensor.detach().clone(), []
                for sign in (1, -1):
                    with torch.no_grad():
                        tensor.copy_(start + sign * STEP * direction)
                        ends.append(self.losses()["loss"].item())
                        tensor.copy_(start)
                slope, size = (ends[0] - ends[1]) / (2 * STEP), (gradient * direction).abs().sum().item()
                # Rounding of a loss near 1 by some 1e-15, over the step; the step's square is less.
                assert size > 0 and abs(slope - (gradient * direction).sum().item()) <= 1e-6 * size + 1e-8, (
                    self.name, tuple(tensor.shape), slope, (gradient * direction).sum().item())

    def results(self) -> dict:
        losses = {name: value.detach() for name, value in self.losses().items() if name != "loss"}
        gradients = self.gradients()
        self.check_slopes(gradients)
        stored, at = {}, 0
        for name, (owners, shape) in self.parameters().items():
            of_all = lambda tensors: torch.stack([t.detach().reshape(shape) for t in tensors])
            alone = lambda tensors: tensors[0].detach().reshape(shape)
            pack = alone if len(owners) == 1 else of_all
            stored[name] = pack(owners)
            stored["gradient." + name] = pack(gradients[at:at + len(owners)])
            at += len(owners)
        return {f"{self.name}.{name}": value for name, value in (stored | losses).items()}


class Batch:
    def __init__(self, model: Model):
        ids = load_file(MODEL / "expected.safetensors")["input_ids"].long()
        self.texts = ids[: sum(TEXTS)].split(TEXTS)
        self.teacher = [model.hidden(ids) for ids in self.texts]

    def distance(self, hidden):
        """The mean over elements of all texts."""
        return (torch.cat(hidden) - torch.cat(self.teacher)).pow(2).mean()


class WgKv(Step):
    name = "wg_kv"

    def __init__(self, model: Model, batch: Batch, generator):
        self.model, self.batch, self.reads = model, batch, lambda keys: keys
        self.gates = [WriteGate(model) for _ in range(model.layers)]
        for gate in self.gates:
            for norm in (gate.pre_key_norm, gate.post_key_norm):
                draw(norm.weight, generator, 0.25, middle=1)
            draw(gate.conv1.weight, generator, 0.25)
            draw(gate.conv1.bias, generator, 0.25)
            draw(gate.conv2.weight, generator, 0.75)
            draw(gate.conv2.bias, generator, 1, middle=-2)

    def parameters(self):
        heads, units, dim = self.model.kv_heads, int(self.model.dim * EXPAND), self.model.dim
        return {"pre_rope_norm.weight": ([gate.pre_key_norm.weight for gate in self.gates], (dim,)),
                "norm.weight": ([gate.post_key_norm.weight for gate in self.gates], (dim,)),
                "hidden.weight": ([gate.conv1.weight for gate in self.gates], (heads, units, 2 * dim)),
                "hidden.bias": ([gate.conv1.bias for gate in self.gates], (heads, units)),
                "output.weight": ([gate.conv2.weight for gate in self.gates], (heads, units)),
                "output.bias": ([gate.conv2.bias for gate in self.gates], (heads,))}

    def run(self, ids):
        """Hidden states and gates [layers, tokens, kv_heads]."""
        gates = []

        def attention(layer, x, queries, pre_rope, keys, values):
            gates.append(self.gates[layer](self.reads(pre_rope), self.reads(keys)))
            logarithms = gates[-1].clamp(min=LEAST).log().T[:, None]
            bias = torch.where(ages(len(x)) < WINDOW, 0.0, logarithms)
            return self.model.attend(queries, keys, values, bias)

        return self.model.hidden(ids, attention), torch.stack(gates)

    def losses(self):
        hidden, gates = zip(*(self.run(ids) for ids in self.batch.texts))
        windowed = [(WINDOW / (count - torch.arange(count, dtype=torch.float64))).clamp(max=1) for count in TEXTS]
        windowed, gates = torch.cat(windowed)[:, None], torch.cat(gates, dim=1)
        sparsity_of = lambda g: (windowed + (1 - windowed) * (1 - (1 - g) ** 2)).mean()
        distillation, sparsity = self.batch.distance(hidden), sparsity_of(gates)
        assert ((gates / LEAST).log().abs() > MARGIN).all()
        return {"loss": distillation + SPARSITY * sparsity, "gates": gates, "distillation": distillation,
                "sparsity": sparsity, "released_sparsity": sparsity_of(gates.clamp(min=LEAST))}

    def check_layout(self, stored):
        """The gates by plain sums over the stored tensors, of keys that plain gates have made."""
        of = lambda name: stored["wg_kv." + name]

        def attention(layer, x, queries, pre_rope, keys, values):
            norms = torch.cat((of("pre_rope_norm.weight")[layer], of("norm.weight")[layer]))
            gates = torch.zeros(len(x), self.model.kv_heads, dtype=torch.float64)
            for head in range(self.model.kv_heads):
                inputs = norms * torch.cat((rms_normed(pre_rope[:, head], 1e-6), rms_normed(keys[:, head], 1e-6)), -1)
                hidden = inputs @ of("hidden.weight")[layer, head].T + of("hidden.bias")[layer, head]
                hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
                gates[:, head] = (hidden @ of("output.weight")[layer, head] + of("output.bias")[layer, head]).sigmoid()
            collected.append(gates)
            bias = torch.where(ages(len(x)) < WINDOW, 0.0, gates.clamp(min=LEAST).log().T[:, None])
            return self.model.attend(queries, keys, values, bias)

        texts = []
        for ids in self.batch.texts:
            collected = []
            self.model.hidden(ids, attention)
            texts.append(torch.stack(collected))
        assert torch.allclose(torch.cat(texts, dim=1), of("gates"), rtol=1e-10, atol=0)


class Retention(Step):
    name = "retention"

    def __init__(self, model: Model, batch: Batch, generator):
        self.model, self.batch, self.reads = model, batch, lambda x: x
        self.output = nn.Linear(RETENTION_UNITS, model.kv_heads, bias=False, dtype=torch.float64)
        self.bias = nn.Parameter(torch.empty(model.kv_heads, dtype=torch.float64))
        self.gates = [RetentionGate(model, self.output, self.bias) for _ in range(model.layers)]
        for gate in self.gates:
            draw(gate.linear1.weight, generator, 0.125)
            draw(gate.linear1.bias, generator, 0.25)
            draw(gate.linear2.weight, generator, 0.75)
            draw(gate.linear2.bias, generator, 0.25)
        draw(self.output.weight, generator, 0.75)
        draw(self.bias, generator, 0.25, middle=3)

    def parameters(self):
        units = RETENTION_UNITS
        return {"input.weight": ([gate.linear1.weight for gate in self.gates], (units, self.model.width)),
                "input.bias": ([gate.linear1.bias for gate in self.gates], (units,)),
                "hidden.weight": ([gate.linear2.weight for gate in self.gates], (units, units)),
                "hidden.bias": ([gate.linear2.bias for gate in self.gates], (units,)),
                "output.weight": ([self.output.weight], (self.model.kv_heads, units)),
                "output.bias": ([self.bias], (self.model.kv_heads,))}

    def run(self, ids):
        """Hidden states and log beta [layers, tokens, kv_heads]."""
        logarithms = []

        def attention(layer, x, queries, pre_rope, keys, values):
            logarithms.append(self.gates[layer](self.reads(x)))
            return self.model.attend(queries, keys, values, ages(len(x)) * logarithms[-1].T[:, None])

        return self.model.hidden(ids, attention), torch.stack(logarithms)

    @staticmethod
    def occupancy(logarithms):
        """S [layers, tokens, kv_heads] of log beta of one text."""
        powers = torch.einsum("ti,lih->ltih", ages(logarithms.shape[1]).double(), logarithms)
        future = ages(logarithms.shape[1]) < 0
        return powers.masked_fill(future[None, :, :, None], -torch.inf).exp().sum(2)

    @staticmethod
    def hinge(occupancies, pooled):
        """Of one number a token: [..., tokens] of each text. And how many are over."""
        excesses, most = [], pooled * CAPACITY
        for occupancy in occupancies:
            assert ((occupancy - most).abs() > MARGIN * most).all()
            excess = (occupancy - most) / (pooled * torch.arange(occupancy.shape[-1]) - most).clamp(min=1)
            excesses.append(excess[occupancy > most])
        return torch.cat(excesses).mean(), torch.tensor(sum(map(len, excesses)), dtype=torch.int32)

    def losses(self):
        hidden, logarithms = zip(*(self.run(ids) for ids in self.batch.texts))
        divergences, next_tokens = [], []
        for ids, student, teacher in zip(self.batch.texts, hidden, self.batch.teacher):
            log_q, log_p = self.model.log_probabilities(student[:-1]), self.model.log_probabilities(teacher[:-1])
            divergences.append((log_p.exp() * (log_p - log_q)).sum(-1))
            next_tokens.append(-log_q.gather(1, ids[1:, None])[:, 0])
        divergence, next_token = torch.cat(divergences).mean(), torch.cat(next_tokens).mean()
        occupancies = [self.occupancy(of_text) for of_text in logarithms]
        heads = self.model.layers * self.model.kv_heads
        capacity, overfull = self.hinge([occupancy.sum((0, 2)) for occupancy in occupancies], heads)
        local, local_overfull = self.hinge([occupancy.transpose(1, 2) for occupancy in occupancies], 1)
        return {"loss": (divergence + next_token) / 2 + capacity, "log_beta": torch.cat(logarithms, dim=1),
                "divergence": divergence, "next_token": next_token, "capacity": capacity, "overfull": overfull,
                "local_capacity": local, "local_overfull": local_overfull}

    def check_layout(self, stored):
        of = lambda name: stored["retention." + name]
        silu = lambda x: x / (1 + torch.exp(-x))

        def attention(layer, x, queries, pre_rope, keys, values):
            hidden = silu(x @ of("input.weight")[layer].T + of("input.bias")[layer])
            hidden = silu(hidden @ of("hidden.weight")[layer].T + of("hidden.bias")[layer])
            collected.append(-torch.log1p(torch.exp(-(hidden @ of("output.weight").T + of("output.bias")))))
            return self.model.attend(queries, keys, values, ages(len(x)) * collected[-1].T[:, None])

        texts = []
        for ids in self.batch.texts:
            collected = []
            self.model.hidden(ids, attention)
            texts.append(torch.stack(collected))
        assert torch.allclose(torch.cat(texts, dim=1), of("log_beta"), rtol=1e-10, atol=0)


class Duo(Step):
    name = "duo"

    def __init__(self, model: Model, batch: Batch, generator):
        self.model, self.batch = model, batch
        alphas = torch.rand(model.layers, model.kv_heads, generator=generator, dtype=torch.float64) * 0.9 + 0.05
        self.alphas = alphas.bfloat16().double().requires_grad_()

    def parameters(self):
        return {"alphas": ([self.alphas], tuple(self.alphas.shape))}

    def losses(self):
        def attention(layer, x, queries, pre_rope, keys, values):
            tokens = len(x)
            seen = (torch.arange(tokens) < SINKS) | (ages(tokens) < WINDOW)
            bias = torch.zeros(tokens, tokens, dtype=torch.float64).masked_fill(~seen, -torch.inf)
            streaming = self.model.attend(queries, keys, values, bias.expand(self.model.kv_heads, -1, -1))
            alpha = self.alphas[layer].repeat_interleave(self.model.group * self.model.dim)
            return alpha * self.model.attend(queries, keys, values) + (1 - alpha) * streaming

        distillation = self.batch.distance([self.model.hidden(ids, attention) for ids in self.batch.texts])
        return {"loss": distillation + LOCALITY * self.alphas.mean(), "distillation": distillation}


def check_model(model: Model) -> None:
    """Against transformers, in f32, on the whole text."""
    expected = load_file(MODEL / "expected.safetensors")
    ids = expected["input_ids"].long()
    losses = -model.log_probabilities(model.hidden(ids))[:-1].gather(1, ids[1:, None])[:, 0]
    assert (losses - expected["nll"]).abs().max() < 1e-5


def check_reads_matter(step) -> None:
    """The first layer's gradients without what comes through the gates of those above differ by more than a little."""
    of_first, at = {}, 0
    for name, (owners, _) in step.parameters().items():
        if len(owners) > 1:
            of_first[name] = at
        at += len(owners)
    whole, step.reads = step.gradients(), torch.Tensor.detach
    cut, step.reads = step.gradients(), lambda x: x
    for name, at in of_first.items():
        difference = ((cut[at] - whole[at]).norm() / whole[at].norm()).item()
        print(f"{step.name}: without inputs' gradients that of layer 0's {name} is off by {difference:.3f}")
        assert difference > 0.01


def released_classes(path: Path, *names, **known):
    """Of a file whose imports are not here."""
    known = {"nn": nn, "torch": torch, "F": nn.functional} | known
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            exec(compile(ast.Module([node], []), str(path), "exec"), known)
    return [known[name] for name in names]


def check_released(step, gates, run) -> None:
    """run(layer, gate, what it read) is what the released class makes of it; norms of the released one are f32."""
    seen, furthest = [], 0.0
    for layer, gate in enumerate(gates):
        gate.register_forward_hook(lambda gate, read, made, layer=layer: seen.append((layer, gate, read, made)))
    for ids in step.batch.texts:
        step.run(ids)
    for layer, gate, read, made in seen:
        released = run(layer, gate, *read)
        furthest = max(furthest, ((released - made).abs() / made.abs()).max().item())
    print(f"{step.name}: {len(seen)} times the released class, gates at most {furthest:.1e} of themselves away")
    assert len(seen) == len(gates) * len(step.batch.texts) and furthest < 4e-6  # some roundings of f32


def check_released_predictor(step, path: Path) -> None:
    _, predictor_class = released_classes(path, "GatingRMSNorm", "GatingPredictor",
                                          use_kernel_forward_from_hub=lambda name: lambda cls: cls)

    def run(layer, gate, pre_rope, keys):
        for fast in (True, False):  # the slow path clamps
            predictor = predictor_class(step.model.dim, step.model.kv_heads, ("pre_k", "post_k"), "gelu", EXPAND, 0.0,
                                        True, fast).double()
            predictor.load_state_dict(gate.state_dict())
            of_heads = lambda x: x.transpose(0, 1)[None]
            gates = predictor(of_heads(pre_rope), of_heads(keys), None)[0].T
        return gates

    check_released(step, step.gates, run)


def check_released_retention(step, path: Path) -> None:
    (gate_class,) = released_classes(path, "RetentionGate10", ACT2FN={"silu": nn.functional.silu})
    config = SimpleNamespace(hidden_size=step.model.width, retention_gate_intermediate_size=RETENTION_UNITS,
                             num_key_value_heads=step.model.kv_heads, hidden_act="silu", retention_gate_bias_init=0.0)

    def run(layer, gate, x):
        released = gate_class(config, layer).double()
        released.load_state_dict(gate.state_dict())
        return released(x)

    check_released(step, step.gates, run)


def one_layer():
    """A gate of one layer and the inputs that it is asked about."""
    width, units, heads, tokens = ONE_LAYER
    generator = torch.Generator().manual_seed(13)
    gate, inputs = OneLayerGate(width, units, heads), torch.empty(tokens, width, dtype=torch.float64)
    draw(gate.linear1.weight, generator, 0.5)
    draw(gate.linear1.bias, generator, 0.5)
    draw(gate.linear2.weight, generator, 1.0)
    draw(gate.bias, generator, 1.0, middle=3.0)
    draw(inputs, generator, 1.0)
    return gate, inputs


def check_released_one_layer(path: Path) -> None:
    (gate_class,) = released_classes(path, "RetentionGate", ACT2FN={"silu": nn.functional.silu})
    gate, inputs = one_layer()
    width, units, heads, _ = ONE_LAYER
    released = gate_class(SimpleNamespace(hidden_size=width, retention_gate_intermediate_size=units,
                                          num_key_value_heads=heads, hidden_act="silu",
                                          retention_gate_bias_init=0.0)).double()
    released.load_state_dict(gate.state_dict())
    made, theirs = gate(inputs), released(inputs)
    furthest = ((theirs - made).abs() / made.abs()).max().item()
    print(f"one_layer: the released class, gates at most {furthest:.1e} of themselves away")
    assert furthest < 1e-12


def save_one_layer() -> None:
    gate, inputs = one_layer()
    tensors = {"inputs": inputs, "log_beta": gate(inputs)} | gate.state_dict()
    save_file({name: tensor.detach().float().contiguous() for name, tensor in tensors.items()},
              HERE / "one_layer.safetensors")


def main() -> None:
    torch.set_num_threads(1)
    model = Model(MODEL)
    check_model(model)
    batch, generator = Batch(model), torch.Generator().manual_seed(12)
    tensors = {"ids": torch.cat(batch.texts).int(), "texts": torch.tensor(TEXTS, dtype=torch.int32)}
    if len(sys.argv) > 1:
        check_released_predictor(WgKv(model, batch, generator), Path(sys.argv[1]))
        check_released_retention(Retention(model, batch, generator), Path(sys.argv[2]))
        check_released_one_layer(Path(sys.argv[2]))
        return
    save_one_layer()
    for kind in (WgKv, Retention, Duo):
        step = kind(model, batch, generator)
        stored = step.results()
        if kind is not Duo:
            step.check_layout(stored)
            check_reads_matter(step)
        tensors |= stored
    tensors = {name: tensor.reshape(tensor.shape or (1,)) for name, tensor in tensors.items()}
    stored = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, HERE / "expected.safetensors")
    for name, tensor in tensors.items():
        values = tensor.double()
        print(f"{name} {list(tensor.shape)}: {values.min():.6g} to {values.max():.6g}, size {values.norm():.4g}")
    gates = tensors["wg_kv.gates"]
    print("gates below the least, by layer and head:", (gates < LEAST).sum(1).tolist(), "of", gates.shape[1])
    print("gates' quartiles:", [gates[layer, :, head].quantile(torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
                                for layer in range(model.layers) for head in range(model.kv_heads)])


if __name__ == "__main__":
    main()
