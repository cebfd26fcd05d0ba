#include "sim/model/gguf_weights.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "kernels/backend.h"
#include "sim/io/hash.h"
#include "sim/model/gguf_config.h"
#include "sim/model/model_files.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/gguf_model.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

using test::user_error;

class GgufModel : public testing::Test {
 protected:
  const std::filesystem::path& write(const ref::GgufBuilder& builder) const {
    test::write_file(path_, builder.bytes());
    return path_;
  }
  // What loading all of it says, less the path.
  std::string refusal(const ref::GgufBuilder& builder) const {
    write(builder);
    const std::string message = user_error([&] { load_tensors(load_model(path_), *cpu_); });
    EXPECT_TRUE(message.starts_with(path_.string() + ": ")) << message;
    return message.substr(std::min(message.size(), path_.string().size() + 2));
  }
  ref::GgufBuilder::TensorEntry& tensor(const std::string& name) {
    for (auto& each : builder_.tensors) {
      if (each.name == name) return each;
    }
    throw std::runtime_error(name);
  }
  std::vector<float> values(const std::string& name) const {
    for (const ExpectedTensor& expected : expected_tensors(llama_.config())) {
      if (expected.name != name) continue;
      const Tensor loaded = load_model(path_).load(expected, *cpu_);
      std::vector<float> out(static_cast<size_t>(loaded.elements()));
      loaded.download(out.data(), loaded.bytes());
      return out;
    }
    return {};
  }

  const test::TempFolder folder_;
  const std::filesystem::path path_ = folder_ / "model.gguf";
  const std::unique_ptr<Backend> cpu_ = make_backend("cpu");
  const ModelFiles llama_ = load_model(ref::source_path("tests/data/llama"));
  ref::GgufBuilder builder_ = ref::gguf_of(llama_);
};

TEST_F(GgufModel, ItsConfigurationIsThatOfTheFolder) {
  const ModelConfig config = load_model_config(write(builder_)), want = llama_.config();
  EXPECT_EQ(config.layers, want.layers);
  EXPECT_EQ(config.head_dim, want.head_dim);
  EXPECT_EQ(config.vocab_size, want.vocab_size);
  EXPECT_EQ(config.rope.theta, want.rope.theta);
  EXPECT_EQ(static_cast<float>(config.rms_norm_eps), static_cast<float>(want.rms_norm_eps));
  EXPECT_EQ(config.bos_ids, want.bos_ids);
  EXPECT_EQ(config.eos_ids, want.eos_ids);
  EXPECT_EQ(expected_tensors(config).size(), expected_tensors(want).size());
}

TEST_F(GgufModel, ItsFingerprintIsTheFilesHashAndItsFolderHoldsIt) {
  write(builder_);
  EXPECT_EQ(fingerprint(path_), sha256_hex(test::read_file(path_)));
  EXPECT_EQ(load_model(path_).folder(), folder_.path());
  EXPECT_EQ(folder_of_model(path_), folder_.path());
  EXPECT_TRUE(is_model(path_));
  EXPECT_FALSE(is_model(folder_ / "other.gguf"));
}

// Row 1 of a head of 16 turns with row 9, which stands beside it in the file.
TEST_F(GgufModel, RowsOfQueriesAndKeysAreMovedApart) {
  auto& keys = tensor("blk.1.attn_k.weight");
  std::vector<float> marks(keys.bytes.size() / sizeof(float));
  for (size_t i = 0; i < marks.size(); ++i) {
    const size_t row = i / keys.dimensions[0];
    marks[i] = static_cast<float>(row);
  }
  keys.bytes.assign(reinterpret_cast<const char*>(marks.data()), keys.bytes.size());
  write(builder_);
  const std::vector<float> loaded = values("model.layers.1.self_attn.k_proj.weight");
  const size_t width = keys.dimensions[0];
  EXPECT_EQ(loaded[0 * width], 0.0f);
  EXPECT_EQ(loaded[1 * width], 2.0f);
  EXPECT_EQ(loaded[8 * width], 1.0f);
  EXPECT_EQ(loaded[15 * width], 15.0f);
  EXPECT_EQ(loaded[17 * width + 5], 18.0f);  // the second head
}

TEST_F(GgufModel, BlocksAreUnpackedWhenTheyAreLoaded) {
  auto& down = tensor("blk.0.ffn_down.weight");  // [128, 320] in Q8_0: ten blocks of 34 bytes a row
  std::string block("\0\x38", 2);                // a scale of 0.5
  for (int i = 0; i < 32; ++i) block += static_cast<char>(i - 16);
  down.format = 8;
  down.bytes.clear();
  for (int i = 0; i < 128 * 10; ++i) down.bytes += block;
  write(builder_);
  const std::vector<float> loaded = values("model.layers.0.mlp.down_proj.weight");
  ASSERT_EQ(loaded.size(), 128u * 320u);
  for (size_t i = 0; i < loaded.size(); ++i) ASSERT_EQ(loaded[i], 0.5f * (static_cast<float>(i % 32) - 16)) << i;
}

TEST_F(GgufModel, RefusesTensorsThatDoNotFitTheMetadata) {
  auto& down = tensor("blk.0.ffn_down.weight");
  std::swap(down.dimensions[0], down.dimensions[1]);
  EXPECT_EQ(refusal(builder_),
            "tensor \"blk.0.ffn_down.weight\": shape [320, 128], expected [128, 320] from the metadata");
  std::swap(down.dimensions[0], down.dimensions[1]);
  down.name = "blk.0.ffn_other.weight";
  EXPECT_EQ(refusal(builder_),
            "tensor \"blk.0.ffn_down.weight\" is missing; the metadata ask for it with shape [128, 320]");
  down.name = "blk.0.ffn_down.weight";
  builder_.put_f32_tensor("blk.3.ffn_down.weight", {1}, std::vector<float>{1});
  EXPECT_EQ(refusal(builder_),
            "tensor \"blk.3.ffn_down.weight\" has no place in a llama model of 3 layers as the metadata describe it");
}

TEST_F(GgufModel, RefusesWeightsThatAreNotFinite) {
  tensor("output_norm.weight").bytes.replace(8, 4, "\0\0\xc0\x7f", 4);
  EXPECT_EQ(refusal(builder_), "tensor \"output_norm.weight\": element [2] is nan, expected finite numbers");
}

}  // namespace
}  // namespace kv
