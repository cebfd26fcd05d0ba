#include "sim/io/gguf.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "sim/io/safetensors.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/gguf_file.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

using ref::GgufBuilder;
using test::user_error;

constexpr uint32_t kQ4_1 = 3;

GgufFile parse(const std::string& bytes) { return GgufFile::from_bytes(std::as_bytes(std::span(bytes)), "f.gguf"); }

std::string refusal(const std::string& bytes) {
  return user_error([&] { parse(bytes); });
}
std::string refusal(const GgufBuilder& builder) { return refusal(builder.bytes()); }

// A [2, 3] and a [40] tensor of F32: bytes [0, 24) and [32, 192).
GgufBuilder two_tensors() {
  GgufBuilder builder;
  builder.put_f32_tensor("a", {3, 2}, std::vector<float>{1, 2, 3, 4, 5, 6});
  builder.put_f32_tensor("b", {40}, std::vector<float>(40, 0.5f));
  return builder;
}

TEST(GgufFile, ReadsMetadataOfEveryType) {
  const GgufFile file = GgufFile::open(ref::source_path("tests/data/gguf/formats.gguf"));
  EXPECT_EQ(file.version(), 3u);
  const auto text_of = [&](const char* key) { return shown(*file.value(key)); };
  EXPECT_EQ(file.integer("test.uint8", 0, 255), 200);
  EXPECT_EQ(file.integer("test.int8", -128, 0), -100);
  EXPECT_EQ(file.integer("test.uint16", 0, 65535), 60000);
  EXPECT_EQ(file.integer("test.int16", -32768, 0), -30000);
  EXPECT_EQ(file.integer("test.uint32", 0, 1LL << 32), 4000000000);
  EXPECT_EQ(file.integer("test.int32", -2147483648LL, 0), -2000000000);
  EXPECT_EQ(text_of("test.uint64"), "9223372036854775808");
  EXPECT_EQ(file.integer("test.int64", std::numeric_limits<int64_t>::min(), 0), -(1LL << 62));
  EXPECT_EQ(file.number("test.float32", 0, 1), 0.5);
  EXPECT_EQ(file.number("test.float64", 0, 1), 0.1);
  EXPECT_EQ(file.flag("test.bool"), true);
  EXPECT_EQ(file.text("test.string"), "na\xc3\xafve");
  const GgufArray& strings = *file.array("test.strings");
  ASSERT_EQ(strings.size(), 3u);
  EXPECT_EQ(std::get<std::string_view>(strings[2].value), "bc");
  EXPECT_EQ(std::get<int64_t>(file.array("test.integers")->at(1).value), -2);
  EXPECT_EQ(std::get<GgufArray>(file.array("test.nested")->at(0).value).size(), 2u);
  EXPECT_EQ(text_of("test.nested"), "a list of 2");
  EXPECT_EQ(file.integer("test.absent", 0, 1), std::nullopt);
  EXPECT_EQ(file.array("test.absent"), nullptr);
}

// The numbers are those of another implementation (tests/data/README.md), bit for bit.
TEST(GgufFile, UnpacksEveryFormatExactly) {
  const GgufFile file = GgufFile::open(ref::source_path("tests/data/gguf/formats.gguf"));
  const auto expected = ref::open_packed("tests/data/gguf/formats.safetensors");
  ASSERT_EQ(file.tensors().size(), 11u);
  for (const GgufTensor& tensor : file.tensors()) {
    EXPECT_EQ(tensor.name, "in." + std::string(block_format_name(tensor.format)));
    const TensorInfo& info = expected.require(tensor.name);
    ASSERT_EQ(tensor.shape, info.shape);
    const std::vector<float> want = expected.read_f32(info);
    std::vector<float> got(want.size());
    file.read_f32(tensor, 0, got);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << tensor.name << " at " << i;
    }
    std::vector<float> second(512);  // the second row alone
    file.read_f32(tensor, 512, second);
    EXPECT_TRUE(std::equal(second.begin(), second.end(), want.begin() + 512)) << tensor.name;
  }
}

TEST(GgufFile, ReadsWhatItsDirectoryDescribes) {
  GgufBuilder builder = two_tensors();
  builder.put_text("general.name", "x");
  const std::string bytes = builder.bytes();
  const GgufFile file = parse(bytes);
  ASSERT_NE(file.find("a"), nullptr);
  EXPECT_EQ(file.find("a")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.find("b")->begin, 32u);
  EXPECT_EQ(file.find("c"), nullptr);
  std::vector<float> row(3);
  file.read_f32(*file.find("a"), 3, row);
  EXPECT_EQ(row, (std::vector<float>{4, 5, 6}));
  builder.version = 2;
  EXPECT_EQ(parse(builder.bytes()).version(), 2u);
}

TEST(GgufFile, AlignsTheDataAsItsMetadataSays) {
  GgufBuilder builder = two_tensors();
  builder.put_u32("general.alignment", 8);
  builder.alignment = 8;
  const std::string bytes = builder.bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.find("b")->begin, 24u);
  std::vector<float> values(40);
  file.read_f32(*file.find("b"), 0, values);
  EXPECT_EQ(values, std::vector<float>(40, 0.5f));

  for (const auto& [value, shown] : {std::pair(0u, "0"), {48u, "48"}, {1u << 30, "1073741824"}}) {
    GgufBuilder lie = two_tensors();
    lie.put_u32("general.alignment", value);
    EXPECT_TRUE(refusal(lie).starts_with(std::string("f.gguf: general.alignment is ") + shown + ", expected "));
  }
}

TEST(GgufFile, RefusesWhatIsNoGguf) {
  EXPECT_EQ(refusal("PK\x03\x04 zip file"),
            "f.gguf: begins with \"PK\\u0003\\u0004\", expected \"GGUF\": not a GGUF file");
  EXPECT_EQ(refusal("GG"), "f.gguf: \"its magic\" takes 4 bytes, but 2 are left: the file is cut short or lies");
  GgufBuilder builder;
  builder.version = 1;
  EXPECT_EQ(refusal(builder), "f.gguf: GGUF version 1, expected 2 or 3");
  builder.version = 0x03000000;
  EXPECT_EQ(refusal(builder), "f.gguf: GGUF version 50331648, expected 2 or 3, little-endian: this file is big-endian");
}

TEST(GgufFile, RefusesAbsurdCounts) {
  GgufBuilder tensors = two_tensors();
  tensors.tensor_count = 1ull << 60;
  EXPECT_EQ(refusal(tensors), "f.gguf: 1152921504606846976 tensors, expected at most 65536");
  GgufBuilder values = two_tensors();
  values.value_count = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(refusal(values),
            "f.gguf: \"the metadata\" has 18446744073709551615 values, expected at most 4194304 in the file");
  GgufBuilder list;
  const uint32_t type = 0;
  const uint64_t count = 1ull << 40;
  list.put_raw(
      "k", 9,
      std::string(reinterpret_cast<const char*>(&type), 4) + std::string(reinterpret_cast<const char*>(&count), 8));
  EXPECT_NE(refusal(list).find("\"k\" takes 1099511627776 bytes"), std::string::npos);
  GgufBuilder text;
  text.put_raw("k", 8, std::string(8, '\xff'));
  EXPECT_NE(refusal(text).find("\"k\" takes 18446744073709551615 bytes"), std::string::npos);
  GgufBuilder deep;
  std::string nested;
  for (int i = 0; i < 40; ++i) nested += std::string("\x09\0\0\0\x01\0\0\0\0\0\0\0", 12);
  deep.put_raw("k", 9, nested);
  EXPECT_EQ(refusal(deep), "f.gguf: \"k\" is nested deeper than 4 lists");
}

TEST(GgufFile, RefusesMetadataThatLies) {
  GgufBuilder twice;
  twice.put_u32("k", 1);
  twice.put_u32("k", 2);
  EXPECT_EQ(refusal(twice), "f.gguf: metadata key \"k\" occurs twice");
  GgufBuilder type;
  type.put_raw("k\n", 13, "    ");
  EXPECT_EQ(refusal(type), "f.gguf: \"k\\n\" has type number 13, expected 0 to 12");
  GgufBuilder flag;
  flag.put_raw("k", 7, "\x02");
  EXPECT_EQ(refusal(flag), "f.gguf: \"k\" is a bool of 2, expected 0 or 1");

  GgufBuilder kinds;
  kinds.put_text("t", "x");
  kinds.put_f32("f", std::numeric_limits<float>::quiet_NaN());
  kinds.put_u32("u", 7);
  const std::string bytes = kinds.bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(user_error([&] { file.integer("t", 0, 9); }), "f.gguf: t is \"x\", expected an integer from 0 to 9");
  EXPECT_EQ(user_error([&] { file.integer("u", 0, 6); }), "f.gguf: u is 7, expected an integer from 0 to 6");
  EXPECT_EQ(user_error([&] { file.number("f", 0, 1); }), "f.gguf: f is nan, expected a float above 0 and at most 1");
  EXPECT_EQ(user_error([&] { file.text("u"); }), "f.gguf: u is 7, expected a text");
  EXPECT_EQ(user_error([&] { file.flag("u"); }), "f.gguf: u is 7, expected true or false");
  EXPECT_EQ(user_error([&] { file.array("u"); }), "f.gguf: u is 7, expected a list");
  EXPECT_EQ(user_error([&] { file.refuse("v", "a text"); }), "f.gguf: v is missing, expected a text");
}

TEST(GgufFile, RefusesTensorsThatLie) {
  const auto changed = [](auto change) {
    GgufBuilder builder = two_tensors();
    change(builder.tensors[1]);
    return refusal(builder);
  };
  const std::string b = "f.gguf: tensor \"b\": ";
  EXPECT_EQ(changed([](auto& t) { t.dimensions = {}; }), b + "0 dimensions, expected 1 to 4");
  EXPECT_EQ(changed([](auto& t) { t.dimensions.assign(5, 1); }), b + "5 dimensions, expected 1 to 4");
  EXPECT_EQ(changed([](auto& t) { t.dimensions = {0}; }), b + "a dimension of 0, expected 1 to 2^63 - 1");
  EXPECT_EQ(changed([](auto& t) {
              t.dimensions = {1ull << 40, 1ull << 40};
            }),
            b + "shape [1099511627776, 1099511627776] overflows");
  EXPECT_EQ(changed([](auto& t) { t.dimensions = {1ull << 62}; }), b + "shape [4611686018427387904] overflows");
  EXPECT_TRUE(changed([](auto& t) {
                t.format = 10;
              }).starts_with(b + "format number 10 is not supported; expected one of F32 (0), F16 (1), "));
  EXPECT_EQ(changed([](auto& t) { t.format = kQ4_1; }), b + "rows of 40, expected a multiple of 32 for Q4_1");
  EXPECT_EQ(changed([](auto& t) { t.offset = 33; }),
            b + "begins at byte 33 of the data, expected a multiple of the alignment 32");
  EXPECT_EQ(changed([](auto& t) { t.offset = 0; }),
            "f.gguf: tensor \"b\": its bytes [0, 160) overlap those of tensor \"a\", which end at 24");
  EXPECT_EQ(changed([](auto& t) { t.offset = 64; }),
            b + "its bytes [64, 224) reach beyond the 192 bytes of data: the file is cut short or lies");
  EXPECT_EQ(changed([](auto& t) { t.offset = std::numeric_limits<uint64_t>::max() - 31; }),
            b + "an offset of 18446744073709551584 overflows");
  EXPECT_EQ(changed([](auto& t) { t.name = "a"; }), "f.gguf: tensor \"a\": the name occurs twice");
  EXPECT_EQ(changed([](auto& t) { t.offset = 64, t.dimensions = {8}; }),
            b + "begins at byte 64 of the data, which leaves a hole after byte 24");
  EXPECT_EQ(refusal(two_tensors().bytes() + "x"), "f.gguf: the data end 1 bytes after the last tensor \"b\"");
}

TEST(GgufFile, RefusesAFileCutAnywhere) {
  GgufBuilder builder = two_tensors();
  builder.put_texts("list", std::vector<std::string>{"a", "b"});
  const std::string whole = builder.bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(refusal(whole.substr(0, size)).starts_with("f.gguf: ")) << size;
  }
  EXPECT_EQ(parse(whole).tensors().size(), 2u);
}

TEST(GgufFile, RefusesNumbersThatAreNotFinite) {
  GgufBuilder builder;
  std::vector<float> values(64, 1.0f);
  values[33] = std::numeric_limits<float>::infinity();
  builder.put_f32_tensor("plain", {32, 2}, values);
  // A block of Q4_1 whose offset is a NaN, and one of Q8_0 whose scale is infinite.
  builder.tensors.push_back({"offset", {32}, kQ4_1, std::string("\0\x3c\0\x7e", 4) + std::string(16, '\1')});
  builder.tensors.push_back({"scale", {32}, 8, std::string("\0\x7c", 2) + std::string(32, '\0')});
  const std::string bytes = builder.bytes();
  const GgufFile file = parse(bytes);
  const auto reading = [&](const char* tensor) {
    std::vector<float> out(static_cast<size_t>(file.find(tensor)->elements()));
    return user_error([&] { file.read_f32(*file.find(tensor), 0, out); });
  };
  EXPECT_EQ(reading("plain"), "f.gguf: tensor \"plain\": element [1, 1] is inf, expected finite numbers");
  EXPECT_EQ(reading("offset"), "f.gguf: tensor \"offset\": element [0] is nan, expected finite numbers");
  EXPECT_TRUE(reading("scale").starts_with("f.gguf: tensor \"scale\": element [0] is "));
}

}  // namespace
}  // namespace kv
