#include "sim/source/trace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <tuple>

#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/model/model_files.h"
#include "sim/replay/recorder.h"
#include "sim/replay/replay.h"
#include "sim/source/trace_source.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

class TraceOfLlama : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = folder_ / "llama.safetensors";
    const auto file = SafetensorsFile::open(ref::source_path("tests/data/llama/expected.safetensors"));
    sample_.ids = file.read_i32(file.require("input_ids"));
    sample_.ids.resize(60);
    sample_.labels.assign(60, Label::kContext);
    for (int i = 40; i < 60; ++i) sample_.labels[static_cast<size_t>(i)] = i < 50 ? Label::kQuestion : Label::kAnswer;
  }

  void record(RecordOptions options) {
    options.model = "llama";
    record_trace(path_, *backend_, source_, sample_, options);
  }
  std::string error_of_open() {
    try {
      Trace::open(path_);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  ModelSource source_{*backend_, load_model(ref::source_path("tests/data/llama"))};
  Sample sample_;
  test::TempFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
  std::filesystem::path path_;
};

// Keeps the head outputs of every layer and block.
class Outputs final : public Observer {
 public:
  void attended(const LayerView& view, ConstRef outputs) override {
    const auto* values = outputs.as<float>();
    auto& recorded = of_layer_[view.layer];
    recorded.insert(recorded.end(), values, values + view.segments[0].count * view.q_heads * view.head_dim);
  }
  std::map<int, std::vector<float>> of_layer_;
};

std::map<int, std::vector<float>> head_outputs(Backend& backend, Source& source, const std::vector<int32_t>& ids) {
  Outputs outputs;
  Observer* const observers[] = {&outputs};
  Policy full = policy_of("full", nullptr);
  const std::span<const int32_t> sequences[] = {ids};
  const int32_t length = static_cast<int32_t>(ids.size());
  const Schedule schedule = full_schedule({&length, 1}, 1024);
  replay({.backend = backend,
          .source = source,
          .policy = full,
          .sequences = sequences,
          .schedule = schedule,
          .observers = observers});
  return outputs.of_layer_;
}

TEST_F(TraceOfLlama, ReplayingARecordedTraceGivesTheModelsAttentionOutputs) {
  record({.layers = {0, 2}});
  const Trace trace = Trace::open(path_);
  EXPECT_EQ(trace.info().layers, (std::vector<int>{0, 2}));
  EXPECT_EQ(trace.sample().ids, sample_.ids);
  EXPECT_EQ(trace.sample().labels, sample_.labels);
  EXPECT_EQ(trace.sample().context_tokens, 40);
  EXPECT_EQ(trace.nll().size(), 59u);
  EXPECT_EQ(trace.entropy().size(), 60u);
  const Trace* traces[] = {&trace};
  TraceSource replayed(*backend_, traces);
  const auto of_model = head_outputs(*backend_, source_, sample_.ids);
  const auto of_trace = head_outputs(*backend_, replayed, sample_.ids);
  EXPECT_EQ(of_trace.at(0), of_model.at(0));
  EXPECT_EQ(of_trace.at(1), of_model.at(2));
}

// They are read where somebody wants them.
TEST_F(TraceOfLlama, HandsOutLayerInputsWhereTheyAreWanted) {
  record({.layers = {0, 2}});
  const Trace trace = Trace::open(path_);
  const Trace* traces[] = {&trace};
  TraceSource replayed(*backend_, traces);
  EXPECT_TRUE(replayed.info().has_inputs && source_.info().has_inputs);
  const std::span<const int32_t> sequences[] = {sample_.ids};
  const int32_t count = 60, done = 0;
  const Block block = make_block(*backend_, {&done, 1}, {&count, 1});
  for (const bool wanted : {false, true}) {
    replayed.want({.inputs = wanted});
    replayed.begin(sequences);
    replayed.start(block);
    const ConstRef inputs = replayed.project(1).inputs;
    ASSERT_EQ(static_cast<bool>(inputs), wanted);
    if (!wanted) continue;
    const std::vector<float> recorded = trace.read_all(2, "inputs");
    ASSERT_EQ(std::ssize(recorded), int64_t{count} * replayed.info().width);
    EXPECT_TRUE(std::equal(recorded.begin(), recorded.end(), inputs.as<float>()));
  }
}

TEST_F(TraceOfLlama, Bf16HalvesTheFileAndRoundsToEightBits) {
  record({.layers = {1}});
  const auto full_size = std::filesystem::file_size(path_);
  const auto exact = Trace::open(path_).read_all(1, "keys");
  record({.layers = {1}, .dtype = Dtype::kBF16});
  EXPECT_LT(std::filesystem::file_size(path_), 0.55 * static_cast<double>(full_size));
  const auto rounded = Trace::open(path_).read_all(1, "keys");
  ASSERT_EQ(rounded.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_LE(std::abs(rounded[i] - exact[i]), std::abs(exact[i]) * 0x1p-8f);  // half a unit of 8 significant bits
  }
}

TEST_F(TraceOfLlama, ADamagedFileIsRefused) {
  record({.layers = {0}});
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-5, std::ios::end);
  file.put('\x5a');
  file.close();
  EXPECT_EQ(error_of_open(), path_.string() + ": checksum does not match the tensors: the file is damaged");
}

TEST_F(TraceOfLlama, OtherSafetensorsFilesAreNoTraces) {
  path_ = ref::source_path("tests/data/llama/expected.safetensors");
  EXPECT_EQ(error_of_open(), path_.string() + ": not a kvlab trace: metadata lacks 'format'");
}

TEST_F(TraceOfLlama, ALayerTheModelLacksIsRefusedAndNothingIsLeft) {
  try {
    record({.layers = {3}});
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "record: layer 3 is outside the model's 3 layers");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(TraceOfLlama, LinksComeBack) {
  sample_.links = {{.query_begin = 41, .query_end = 43, .sources = {{2, 5}, {8, 9}}},
                   {.query_begin = 41, .query_end = 44, .sources = {{0, 1}}},
                   {.query_begin = 50, .query_end = 60, .sources = {{2, 5}}}};
  record({.layers = {0}});
  const Trace trace = Trace::open(path_);
  const std::vector<Link>& links = trace.sample().links;
  ASSERT_EQ(links.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(links[i].query_begin, sample_.links[i].query_begin);
    EXPECT_EQ(links[i].query_end, sample_.links[i].query_end);
    EXPECT_EQ(links[i].sources, sample_.links[i].sources);
  }
}

TEST_F(TraceOfLlama, LinksOutsideTheTokensAreRefused) {
  sample_.links = {{.query_begin = 41, .query_end = 43, .sources = {{2, 5}, {8, 61}}}};
  record({.layers = {0}});
  EXPECT_EQ(error_of_open(),
            path_.string() + ": tensor 'links', row 1: expected ranges of tokens, queries in ascending order");
}

TEST_F(TraceOfLlama, SaysWhatItHolds) {
  record({.layers = {0}, .dtype = Dtype::kBF16});
  const TraceInfo info = Trace::open(path_).info();
  EXPECT_EQ(info.dtype, Dtype::kBF16);
  EXPECT_TRUE(info.has_pre_rope_queries && info.has_pre_rope_keys && info.has_inputs && info.has_output_weight);
}

// The recipe of sim/source/trace.h, as another tool would follow it; the names here are sorted already.
std::string checksum_of(std::span<const TensorData> sorted, const std::vector<size_t>& bytes) {
  std::string joined;
  for (size_t i = 0; i < sorted.size(); ++i) {
    joined += sha256_hex(std::span(static_cast<const std::byte*>(sorted[i].data), bytes[i]));
  }
  return sha256_hex(joined);
}

TEST_F(TraceOfLlama, TensorsOfAnotherShapeThanPromisedAreNamed) {
  const std::vector<int32_t> ids = {1, 2, 3};
  const std::vector<float> values(3 * 2 * 4);
  const TensorData tensors[] = {{"input_ids", Dtype::kI32, {3}, ids.data()},
                                {"layers.0.keys", Dtype::kF32, {3, 2, 4}, values.data()},
                                {"layers.0.queries", Dtype::kF32, {3, 2, 4}, values.data()},
                                {"layers.0.values", Dtype::kF32, {3, 1, 8}, values.data()}};
  write_safetensors(path_, tensors,
                    {{"format", "kvlab-trace"},
                     {"version", "1"},
                     {"checksum", checksum_of(tensors, {12, 96, 96, 96})},
                     {"model", "x"},
                     {"layers", "0"},
                     {"q_heads", "2"},
                     {"kv_heads", "2"},
                     {"head_dim", "4"},
                     {"width", "8"}});
  EXPECT_EQ(error_of_open(), path_.string() + ": tensor 'layers.0.values' has shape [3, 1, 8]: expected [3, 2, 4]");
}

// With a checksum that holds: only the numbers themselves are wrong.
class DamagedTrace : public TraceOfLlama {
 protected:
  std::string bytes() {
    record({.layers = {0, 2}});
    return test::read_file(path_);
  }
  std::string error_of(std::string changed) {
    const std::string checksum = trace_checksum(SafetensorsFile::open(path_));
    const auto file = SafetensorsFile::from_bytes(std::as_bytes(std::span(changed)), "changed");
    test::write_file(path_, test::replaced(changed, checksum, trace_checksum(file)));
    return error_of_open();
  }
};

TEST_F(DamagedTrace, NumbersThatAreNotFiniteAreRefused) {
  const std::string good = bytes();
  const auto file = SafetensorsFile::from_bytes(std::as_bytes(std::span(good)), "good");
  for (const char* tensor : {"layers.0.queries", "layers.2.values", "nll"}) {
    record({.layers = {0, 2}});
    std::string changed = good;
    const auto place = reinterpret_cast<const char*>(file.bytes(file.require(tensor)).data()) - good.data();
    const float number = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(changed.data() + place, &number, sizeof number);
    EXPECT_NE(error_of(changed).find(std::string("tensor \"") + tensor + "\": element [0"), std::string::npos)
        << tensor;
  }
}

TEST_F(DamagedTrace, MetadataThatCannotBeRightIsRefused) {
  const std::string good = bytes();
  for (const auto& [from, to, reason] :
       {std::tuple("\"layers\":\"0,2\"", "\"layers\":\"0,0\"", "0 appears twice"),
        std::tuple("\"rope_attention_factor\":\"1\"", "\"rope_attention_factor\":\"nan\"", "not a finite number")}) {
    record({.layers = {0, 2}});
    std::string changed = test::replaced(good, from, to);
    uint64_t length = 0;
    std::memcpy(&length, changed.data(), sizeof length);
    length += changed.size() - good.size();
    std::memcpy(changed.data(), &length, sizeof length);
    EXPECT_NE(error_of(changed).find(reason), std::string::npos) << to;
  }
}

TEST_F(DamagedTrace, ANegativeTokenIsRefused) {
  std::string changed = bytes();
  const auto file = SafetensorsFile::from_bytes(std::as_bytes(std::span(changed)), "changed");
  const auto place = reinterpret_cast<const char*>(file.bytes(file.require("input_ids")).data()) - changed.data();
  const int32_t id = -1;
  std::memcpy(changed.data() + place, &id, sizeof id);
  EXPECT_NE(error_of(changed).find("an id is negative"), std::string::npos);
}

}  // namespace
}  // namespace kv
