#!/usr/bin/env python3
"""Runs kvlab_bench on this machine's GPU, then its peers, and writes benchmarks.json, what experiments/kernels-cuda.yaml
reads:

  {"manifest": {...}, "peaks": {"copy_bytes_per_s", "gemm_flops_per_s"},
   "benchmarks": [{"by", "kernel", "shape", "median_s", "low_s", "high_s", "samples", "bytes", "flops"}, ...]}

`by` is cuda for our kernels, else the peer; low_s and high_s are the quartiles. Peers need torch and are left out, with
a line, where it is not here.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # peers.py lies beside

COUNTERS = ("median_s", "low_s", "high_s", "samples", "bytes", "flops")
WATCHED = {"clocks.sm": "sm_clock_mhz", "clocks.mem": "memory_clock_mhz", "power.draw": "power_w"}


def log(line):
    print(f"dev: bench --gpu: {line}", file=sys.stderr)


def fail(line):
    log(line)
    sys.exit(1)


def is_number(text):  # where a card does not tell, nvidia-smi prints [N/A]
    try:
        float(text)
        return True
    except ValueError:
        return False


def of_first_visible():  # nvidia-smi knows nothing of what CUDA shows a process, and would tell of the other cards, too
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return ["--id=" + visible.split(",")[0]] if visible else []


class Watch:
    """Clocks and power while the benchmarks run: the chip's state is part of a measurement."""

    def __enter__(self):
        self.file = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            ["nvidia-smi", *of_first_visible(), "--query-gpu=" + ",".join(WATCHED), "--format=csv,noheader,nounits",
             "--loop-ms=200"],
            stdout=self.file)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ranges(self):
        self.file.seek(0)
        rows = [line.split(",") for line in self.file if line.count(",") == len(WATCHED) - 1]
        columns = [[float(row[i]) for row in rows if is_number(row[i])] for i in range(len(WATCHED))]
        return {name: {"low": min(column), "median": statistics.median(column), "high": max(column)}
                for name, column in zip(WATCHED.values(), columns) if column}


def run_ours(binary, arguments):
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        command = [binary, "--device=cuda", f"--benchmark_out={out.name}", "--benchmark_out_format=json", *arguments]
        if subprocess.run(command).returncode != 0:
            fail("kvlab_bench failed")
        report = json.load(out)
    entries = []
    for entry in report["benchmarks"]:
        if entry.get("error_occurred"):
            fail(f"{entry['name']}: {entry['error_message']}")
        by, kernel, shape = entry["name"].split("/")[:3]  # Google Benchmark adds its settings behind
        entries.append({"by": by, "kernel": kernel, "shape": shape, **{name: entry[name] for name in COUNTERS}})
    return report["context"], entries


def main():
    parser = argparse.ArgumentParser(description="Benchmarks of the CUDA backend and its peers.")
    parser.add_argument("--bench", required=True, help="the kvlab_bench binary")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of benchmarks.json")
    arguments, others = parser.parse_known_args()
    try:
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        fail("no GPU here (nvidia-smi finds none)")

    manifest = {}
    with Watch() as watch:
        context, entries = run_ours(arguments.bench, others)
        if importlib.util.find_spec("torch"):
            import peers
            entries += peers.measure(entries, log)
            manifest = peers.versions()
        else:
            log("no torch here: without the peers")
        state = watch.ranges()
    peaks = {name: float(context.pop("cuda_" + name)) for name in ("copy_bytes_per_s", "gemm_flops_per_s")}
    known = ("date", "commit", "changes", "gpu", "gpu_multiprocessors", "gpu_memory_bytes", "cuda_driver",
             "cuda_runtime", "cublaslt")
    manifest = {name: context[name] for name in known} | {"driver": driver} | manifest | state
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "benchmarks.json"
    path.write_text(json.dumps({"manifest": manifest, "peaks": peaks, "benchmarks": entries}, indent=1) + "\n")
    log(f"{len(entries)} benchmarks in {path}")


if __name__ == "__main__":
    main()
