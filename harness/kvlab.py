"""kvlab from Python: run experiments, read their rows, score texts and compress caches. Needs the standard library only.

    import sys; sys.path.append("harness")
    import kvlab

    result = kvlab.run("experiments/quickstart.yaml", out="/tmp/try", samples=1, axes__budget=[128, 256])
    for row in result.rows(metric="loss_ratio"):
        print(row["policy"], row["data"], row["budget"], row["value"])
    result.columns(metric="recall")      # {"policy": [...], "value": [...], ...}: pandas.DataFrame(...) takes it
    result.manifest["commit"]
    kvlab.rows("results/001-table2-cuda")  # of any result folder, packed (columns.csv.xz) or not

    scores = kvlab.score("experiments/models/reference", text="README.md", policy={"policy": "h2o"}, budget=64,
                         interval=16)
    sum(scores["nll"].values)            # a Tensor: .shape, .values (a flat array), .tolist(); NumPy takes .values
    kept = kvlab.compress("experiments/models/reference", "keydiff", keep=0.5, text="README.md")
    kept["keep"].shape                   # [layers, KV heads, tokens]

A keyword of run() is --set: samples=2 is `--set samples=2`; two underscores stand for a dot, so axes__budget=[64] is
`--set axes.budget=[64]`; what no keyword can spell goes into a dict: sets={"policies.h2o.recent": 8}.

The program is the environment's KVLAB if set, else build/kvlab beside this file's folder, else `kvlab` on the PATH.
What it refuses raises kvlab.Error with its one line; .code is its exit code: 2 for a mistake of the caller's, 1 where
something failed.
"""

import array
import collections
import csv
import json
import lzma
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

_INTEGERS = ("sample", "seed", "layer", "head")
_NUMBERS = ("x", "value")
_TEXTS = ("experiment", "model", "data", "policy", "device", "metric", "unit", "text", "skipped")
_ARRAYS = {"F32": "f", "F64": "d", "I32": "i", "I64": "q", "U8": "B", "BOOL": "B"}


class Error(Exception):
    """What kvlab said on its error stream, and its exit code (None where it never ran)."""

    def __init__(self, message, code=None):
        super().__init__(message)
        self.code = code


def binary():
    """The program that the functions below start."""
    if os.environ.get("KVLAB"):
        return os.environ["KVLAB"]
    built = pathlib.Path(__file__).resolve().parent.parent / "build" / "kvlab"
    if built.is_file():
        return str(built)
    found = shutil.which("kvlab")
    if found:
        return found
    raise Error(f"no kvlab program: neither {built} nor on the PATH; set KVLAB or build it with ./dev build")


def _call(arguments, folder=None):
    try:
        done = subprocess.run([binary(), *arguments], cwd=folder, text=True, encoding="utf-8", errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise Error(f"{binary()}: {error.strerror}") from error
    if done.returncode != 0:
        raise Error(done.stderr.strip() or f"kvlab ended with code {done.returncode}", done.returncode)
    return done.stdout


class Result:
    """A result folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def rows(self, **where):
        return rows(self.folder, **where)

    def columns(self, **where):
        return columns(self.folder, **where)

    @property
    def manifest(self):
        return manifest(self.folder)

    def __repr__(self):
        return f"kvlab.Result({str(self.folder)!r})"


def _yaml(value):
    """JSON, which is YAML, on one line; a text stays as it is, so that '[64, 128]' may be written as such."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise Error(f"{value} is no number that a spec can hold")
    return json.dumps(value)


def run(spec, out=None, sets=None, fresh=False, draw=True, **keywords):
    """`kvlab run`: returns the Result. `spec` is a file, `out` its result folder (results/<name> without it)."""
    spec = pathlib.Path(spec)
    folder = pathlib.Path(out) if out else pathlib.Path("results") / spec.stem
    overrides = {key.replace("__", "."): value for key, value in keywords.items()}
    overrides.update(sets or {})
    arguments = ["run", str(spec), "--quiet", "--out", str(folder)]
    for key, value in overrides.items():
        arguments += ["--set", f"{key}={_yaml(value)}"]
    arguments += ["--fresh"] * fresh + ["--no-draw"] * (not draw)
    _call(arguments)
    return Result(folder)


def _number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _value(column, text):
    if text == "":
        return "" if column in _TEXTS else None
    if column in _TEXTS:
        return text
    if column in _INTEGERS:
        return int(text)
    return float(text) if column in _NUMBERS else _number(text)


def _require_even(where, lines, kind):
    for number, line in enumerate(lines, 1):
        if len(line) != len(lines[0]):
            raise Error(f"{where}: {kind} {number} has {len(line)} fields, expected {len(lines[0])} as the first has")


def rows(folder, **where):
    """The rows of a result folder as dicts, those alone whose columns have the values of `where` (or one of a list).
    Empty fields are None, in columns of text ""; axes are numbers where they look like one."""
    file = pathlib.Path(folder) / "rows.csv"
    packed = file.with_name("columns.csv.xz")
    if file.exists():
        with file.open(newline="", encoding="utf-8") as text:
            lines = [line for line in csv.reader(text) if line]
    elif packed.exists():  # a column a line
        with lzma.open(packed, "rt", newline="", encoding="utf-8") as text:
            lines = list(csv.reader(text))
        _require_even(packed, lines, "column")
        lines = list(zip(*lines))
    else:
        raise Error(f"{folder}: no rows.csv or columns.csv.xz there")
    _require_even(folder, lines, "row")
    names = lines[0] if lines else []
    unknown = [column for column in where if column not in names]
    if unknown:
        raise Error(f"{folder}: no column {unknown[0]!r}, expected one of: {', '.join(names)}")
    found = [{column: _value(column, text) for column, text in zip(names, line)} for line in lines[1:]]
    accepted = {column: value if isinstance(value, (list, tuple, set)) else [value] for column, value in where.items()}
    return [row for row in found if all(row[column] in values for column, values in accepted.items())]


def columns(folder, **where):
    """The same rows as a dict of lists, one a column."""
    found = collections.defaultdict(list)
    for row in rows(folder, **where):
        for column, value in row.items():
            found[column].append(value)
    return dict(found)


def manifest(folder):
    """What a result was made of: commit, hashes, seeds, machine, versions."""
    file = pathlib.Path(folder) / "manifest.json"
    if not file.exists():
        raise Error(f"{folder}: no manifest.json there")
    return json.loads(file.read_text(encoding="utf-8"))


class Tensor(collections.namedtuple("Tensor", ["shape", "values"])):
    """Values in one flat array.array, rows last axis fastest."""

    def tolist(self):
        def nested(shape, begin, count):
            if not shape:
                return self.values[begin]
            if len(shape) == 1:
                return self.values[begin:begin + count].tolist()
            step = count // shape[0] if shape[0] else 0
            return [nested(shape[1:], begin + i * step, step) for i in range(shape[0])]

        return nested(list(self.shape), 0, len(self.values))


def tensors(file):
    """Reads a safetensors file of f32, f64, i32, i64, u8 or bool: {name: Tensor}."""
    data = pathlib.Path(file).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _ARRAYS:
            raise Error(f"{file}: {name} is {entry['dtype']}, expected one of {', '.join(_ARRAYS)}")
        values = array.array(_ARRAYS[entry["dtype"]])
        begin, end = entry["data_offsets"]
        values.frombytes(data[8 + size + begin:8 + size + end])
        if sys.byteorder == "big":
            values.byteswap()
        found[name] = Tensor(entry["shape"], values)
    return found


def _write_ids(file, ids):
    values = array.array("i", ids)
    if sys.byteorder == "big":
        values.byteswap()
    header = json.dumps({"input_ids": {"dtype": "I32", "shape": [len(ids)], "data_offsets": [0, 4 * len(ids)]}})
    header += " " * (-len(header) % 8)
    file.write_bytes(struct.pack("<Q", len(header)) + header.encode() + values.tobytes())


def _engine(verb, model, text, ids, options):
    """Runs a verb that reads token ids and writes tensors."""
    if (text is None) == (ids is None):
        raise Error(f"{verb}: expected either text=FILE or ids=[...]")
    with tempfile.TemporaryDirectory(prefix="kvlab-") as name:
        folder = pathlib.Path(name)
        arguments = [verb, "--model", str(model), "--out", str(folder / "out.safetensors")]
        if text is not None:
            arguments += ["--text", str(text)]
        elif isinstance(ids, (str, os.PathLike)):
            arguments += ["--ids", str(ids)]
        else:
            _write_ids(folder / "ids.safetensors", list(ids))
            arguments += ["--ids", str(folder / "ids.safetensors")]
        for option, value in options.items():
            if value is not None:
                arguments += [f"--{option}", _yaml(value)]
        _call(arguments)
        return tensors(folder / "out.safetensors")


def score(model, text=None, ids=None, policy=None, budget=None, interval=None, logits_tail=None, seed=None,
          device=None):
    """`kvlab score`: {"input_ids": [T], "nll": [T-1], "entropy": [T]}, and "logits_tail" where asked for. `text` is a
    file, `ids` a list or a safetensors file; a policy is a name or a dict, as in a spec, and needs budget and interval.
    """
    return _engine("score", model, text, ids, {"policy": policy, "budget": budget, "interval": interval,
                                               "logits-tail": logits_tail, "seed": seed, "device": device})


def compress(model, policy, keep, text=None, ids=None, seed=None, device=None):
    """`kvlab compress`: {"score": [layers, KV heads, T], "keep": the same, 1 where an entry stays}."""
    return _engine("compress", model, text, ids, {"policy": policy, "keep": keep, "seed": seed, "device": device})
