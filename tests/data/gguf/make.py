#!/usr/bin/env python3
"""Makes formats.gguf and formats.safetensors of this folder anew; needs gguf and safetensors of PyPI.

formats.gguf: metadata of every type, and a tensor [3, 512] in each format that kvlab reads, of random bytes with
scales that are finite (subnormal, negative and zero ones among them). formats.safetensors: what the gguf package's
dequantize gives for each.
"""
import pathlib

import gguf
import numpy
from safetensors.numpy import save_file

F16_AT = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}
SCALES = [0.0123, -0.5, 6e-8, -3e-6, 0.0, -0.0, 65504.0, 1.0, 0.0007]


def random_tensor(random, name, rows, width):
    kind = gguf.GGMLQuantizationType[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    if name in ("F32", "F16", "BF16"):
        numbers = (random.standard_normal((rows, width)) * 10.0 ** random.integers(-9, 4, (rows, width))).astype("f4")
        return kind, gguf.quantize(numbers, kind)
    blocks = random.integers(0, 256, (rows * width // values, size), dtype=numpy.uint8)
    for place in F16_AT[name]:
        scales = random.choice(SCALES, len(blocks)).astype(numpy.float16)
        blocks[:, place:place + 2] = scales.view(numpy.uint8).reshape(-1, 2)
    return kind, blocks.reshape(rows, -1)


def main():
    here = pathlib.Path(__file__).resolve().parent
    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(here / "formats.gguf", "llama")
    writer.add_uint8("test.uint8", 200)
    writer.add_int8("test.int8", -100)
    writer.add_uint16("test.uint16", 60000)
    writer.add_int16("test.int16", -30000)
    writer.add_uint32("test.uint32", 4000000000)
    writer.add_int32("test.int32", -2000000000)
    writer.add_uint64("test.uint64", 1 << 63)
    writer.add_int64("test.int64", -(1 << 62))
    writer.add_float32("test.float32", 0.5)
    writer.add_float64("test.float64", 0.1)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "naïve")
    writer.add_array("test.strings", ["a", "", "bc"])
    writer.add_array("test.integers", [1, -2, 3])
    writer.add_array("test.nested", [[1, 2], [3]])
    expected = {}
    for name in ("F32", "F16", "BF16", *F16_AT):
        kind, data = random_tensor(random, name, 3, 512)
        writer.add_tensor(f"in.{name}", data, raw_dtype=kind)
        expected[f"in.{name}"] = gguf.dequantize(data, kind).astype("f4").reshape(3, 512)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, here / "formats.safetensors")


main()
