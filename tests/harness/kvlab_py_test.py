"""Tests harness/kvlab.py against the program. Usage: kvlab_py_test.py SOURCE_FOLDER KVLAB"""

import lzma
import os
import pathlib
import sys
import tempfile
import unittest

SOURCE, PROGRAM = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "harness"))
os.environ["KVLAB"] = PROGRAM
os.environ["OMP_NUM_THREADS"] = "1"

import kvlab  # noqa: E402

MODEL = SOURCE / "tests" / "data" / "llama"
IDS = [(7 * i + 3) % 1000 for i in range(150)]


class KvlabPy(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._folder.name)
        self.ids = self.folder / "ids.safetensors"
        kvlab._write_ids(self.ids, IDS)
        self.spec = self.folder / "tiny.yaml"
        self.spec.write_text(
            f"# Tiny?\nmodel: {MODEL}\ndata: [{{ids: ids.safetensors, tokens: 64}}]\nsamples: 2\n"
            "policies: [full, h2o]\naxes: {budget: [16, 32], interval: 8}\nmetrics: [loss]\nplots: []\n")

    def tearDown(self):
        self._folder.cleanup()

    def test_a_run_gives_rows_columns_and_a_manifest(self):
        result = kvlab.run(self.spec, out=self.folder / "out", seed=5, axes__budget=[24])
        sums = result.rows(metric="nll_sum", policy="h2o")
        self.assertEqual([row["sample"] for row in sums], [0, 1])
        self.assertEqual({row["budget"] for row in sums}, {24})
        self.assertEqual({row["seed"] for row in sums}, {5})
        self.assertIsInstance(sums[0]["value"], float)
        self.assertIsNone(sums[0]["layer"])
        self.assertEqual(sums[0]["skipped"], "")
        both = result.columns(metric="nll_sum", policy=["full", "h2o"])
        self.assertEqual(both["policy"], ["full", "full", "h2o", "h2o"])
        self.assertEqual(both["value"][2:], [row["value"] for row in sums])
        self.assertIn("commit", result.manifest)

    def test_packed_rows_read_the_same(self):
        result = kvlab.run(self.spec, out=self.folder / "out", sets={"policies.h2o.recent": 4})
        plain = result.rows()
        kvlab._call(["report", str(self.folder / "out"), "--pack"])
        self.assertFalse((self.folder / "out" / "rows.csv").exists())
        self.assertEqual(result.rows(), plain)

    def test_rows_that_are_not_whole_are_an_error(self):
        folder = self.folder / "broken"
        folder.mkdir()
        with lzma.open(folder / "columns.csv.xz", "wt") as file:
            file.write("metric,nll,nll\nvalue,1\n")
        with self.assertRaisesRegex(kvlab.Error, "column 2 has 2 fields, expected 3"):
            kvlab.rows(folder)
        (folder / "rows.csv").write_text("metric,value\nnll,1\n\nnll\n")
        with self.assertRaisesRegex(kvlab.Error, "row 3 has 1 fields, expected 2"):
            kvlab.rows(folder)
        (folder / "rows.csv").write_text("metric,value\nnll,1\n\n")
        self.assertEqual(len(kvlab.rows(folder, metric="nll")), 1)

    def test_what_the_program_refuses_is_an_error_with_its_line_and_code(self):
        with self.assertRaisesRegex(kvlab.Error, "did you mean 'samples'") as caught:
            kvlab.run(self.spec, out=self.folder / "out", smples=1)
        self.assertEqual(caught.exception.code, 2)
        with self.assertRaisesRegex(kvlab.Error, "no rows.csv"):
            kvlab.rows(self.folder / "none")
        kvlab.run(self.spec, out=self.folder / "out")
        with self.assertRaisesRegex(kvlab.Error, "no column 'polcy'"):
            kvlab.rows(self.folder / "out", polcy="full")

    def test_scores_of_ids_given_as_a_list_or_a_file(self):
        full = kvlab.score(MODEL, ids=IDS, logits_tail=2)
        self.assertEqual(full["input_ids"].values.tolist(), IDS)
        self.assertEqual(full["nll"].shape, [149])
        self.assertEqual(full["logits_tail"].shape, [2, 1024])
        self.assertEqual(len(full["logits_tail"].tolist()[1]), 1024)
        self.assertEqual(kvlab.score(MODEL, ids=self.ids)["nll"], full["nll"])
        pruned = kvlab.score(MODEL, ids=IDS, policy={"policy": "h2o"}, budget=32, interval=8)
        self.assertNotEqual(pruned["nll"].values, full["nll"].values)

    def test_a_compressed_cache_keeps_the_asked_share(self):
        tensors = kvlab.compress(MODEL, "keydiff", keep=0.3, ids=IDS)
        self.assertEqual(tensors["keep"].shape, [3, 2, 150])
        self.assertEqual(sum(tensors["keep"].values), 3 * 2 * 45)
        keep = tensors["keep"].tolist()
        self.assertEqual((len(keep), len(keep[0]), len(keep[0][0])), (3, 2, 150))
        self.assertEqual(sum(keep[2][1]), sum(tensors["keep"].values[-150:]))

    def test_either_a_text_or_ids_is_given(self):
        with self.assertRaisesRegex(kvlab.Error, "expected either text=FILE or ids="):
            kvlab.score(MODEL)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
