#include "sim/io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/half.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

using test::safetensors_bytes;
using test::TempFolder;
using test::user_error;

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

SafetensorsFile parse(const std::string& bytes) {
  return SafetensorsFile::from_bytes(std::as_bytes(std::span(bytes)), "f.safetensors");
}

std::string refusal(const std::string& header, std::size_t data_bytes) {
  const std::string bytes = safetensors_bytes(header, std::string(data_bytes, '\0'));
  return user_error([&] { parse(bytes); });
}

TEST(SafetensorsFile, ReadsWhatTheHeaderDescribes) {
  const std::string bytes = safetensors_bytes(
      R"({"__metadata__":{"by":"hand"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},)"
      R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]},"none":{"dtype":"F64","shape":[0,3],"data_offsets":[12,12]}}   )",
      raw<int32_t>({7}) + raw<float>({1.5f, -2.0f}));
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(file.metadata(), (Metadata{{"by", "hand"}}));
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(file.tensors()[2].name, "none");
  EXPECT_EQ(file.require("b").shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(file.read_f32(file.require("b")), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(file.read_i32(file.require("a")), (std::vector<int32_t>{7}));
  EXPECT_TRUE(file.read_f32(file.require("none")).empty());
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(user_error([&] { file.require("c"); }), "f.safetensors: tensor \"c\" is missing");
}

TEST(SafetensorsFile, WidensEveryFloatingTypeFromAnyAlignment) {
  // A one-byte tensor first leaves the others at odd addresses.
  const std::string bytes = safetensors_bytes(
      R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"h":{"dtype":"F16","shape":[2],"data_offsets":[1,5]},)"
      R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[5,9]},"d":{"dtype":"F64","shape":[2],"data_offsets":[9,25]}})",
      std::string(1, '\x05') + raw<uint16_t>({0x3c00, 0xc000}) + raw<uint16_t>({0x3f80, 0xc000}) +
          raw<double>({0.1, -3.0}));
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(file.read_f32(file.require("h")), (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(file.read_f32(file.require("b")), (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(file.read_f32(file.require("d")), (std::vector<float>{0.1f, -3.0f}));
  std::vector<float> second(1);
  file.read_f32(file.require("b"), 1, second);
  EXPECT_EQ(second, (std::vector<float>{-2.0f}));
  EXPECT_EQ(user_error([&] { file.read_f32(file.require("u")); }),
            "f.safetensors: tensor \"u\": dtype U8, expected F32, F16, BF16 or F64");
}

TEST(SafetensorsFile, ReadsIntegersOfBothWidthsWithinRange) {
  const std::string bytes = safetensors_bytes(R"({"i":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})",
                                              raw<int64_t>({-5, std::numeric_limits<int32_t>::max()}));
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(file.read_i32(file.require("i")), (std::vector<int32_t>{-5, std::numeric_limits<int32_t>::max()}));

  const std::string wide =
      safetensors_bytes(R"({"i":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})", raw<int64_t>({1, 1LL << 31}));
  EXPECT_EQ(user_error([&] { parse(wide).read_i32(parse(wide).require("i")); }),
            "f.safetensors: tensor \"i\": element 1 is 2147483648, which does not fit 32 bits");

  const std::string floats = safetensors_bytes(R"({"i":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd");
  EXPECT_EQ(user_error([&] { parse(floats).read_i32(parse(floats).require("i")); }),
            "f.safetensors: tensor \"i\": dtype F32, expected I32 or I64");
}

TEST(SafetensorsFile, RefusesTensorsThatLie) {
  const std::string_view prefix = "f.safetensors: tensor \"w\": ";
  const auto tensor = [](std::string_view body) { return R"({"w":)" + std::string(body) + "}"; };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,16]})",
       "data_offsets [0,16] reach beyond the 8 bytes of data: the file is truncated or its header lies"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})",
       "shape [1] of F32 takes 4 bytes, but data_offsets [0,8] span 8"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "data_offsets [8,0] end before they begin"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})",
       "data_offsets [-8,0] is not a pair of non-negative integers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", "data_offsets [0] is not a pair of non-negative integers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616]})",
       "data_offsets [0,1.8446744073709552e+19] is not a pair of non-negative integers"},
      {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "shape [-2] is not a list of non-negative integers"},
      {R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "shape 2 is not a list of non-negative integers"},
      {R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})",
       "shape [4611686018427387904,4] overflows"},
      {R"({"dtype":"F32","shape":[2147483648,2147483648],"data_offsets":[0,8]})",
       "shape [2147483648,2147483648] overflows"},
      {R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})",
       "dtype \"F8_E4M3\" is not supported; expected one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL"},
      {R"({"dtype":32,"shape":[8],"data_offsets":[0,8]})",
       "dtype 32 is not supported; expected one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL"},
      {R"({"dtype":"U8","shape":[8]})", "data_offsets is missing"},
      {R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1})", "expected only dtype, shape and data_offsets"},
      {"[1]", "expected an object of dtype, shape and data_offsets, got [1]"},
      {R"({"dtype":"U8","shape":[4],"data_offsets":[4,8]})", "begins at byte 4, which leaves a hole after byte 0"},
  };
  for (const auto& [body, reason] : cases) EXPECT_EQ(refusal(tensor(body), 8), std::string(prefix) + reason);
}

TEST(SafetensorsFile, RefusesOverlapsHolesAndLeftovers) {
  const auto second_tensor = [](int begin, int end) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[)" +
           std::to_string(end - begin) + R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) +
           "]}}";
  };
  EXPECT_EQ(refusal(second_tensor(2, 8), 8),
            "f.safetensors: tensor \"b\": its bytes [2, 8) overlap those of tensor \"a\", which end at 4");
  EXPECT_EQ(refusal(second_tensor(6, 8), 8),
            "f.safetensors: tensor \"b\": begins at byte 6, which leaves a hole after byte 4");
  EXPECT_EQ(refusal(second_tensor(4, 7), 8), "f.safetensors: the data end 1 bytes after the last tensor \"b\"");
  EXPECT_EQ(refusal("{}", 3), "f.safetensors: the data end 3 bytes after the last tensor (there is none)");
}

TEST(SafetensorsFile, RefusesHeadersThatLieAboutTheirLength) {
  EXPECT_EQ(user_error([] { parse("1234567"); }), "f.safetensors: 7 bytes are too short for a safetensors file");
  std::string bytes = safetensors_bytes("{}", "");
  bytes[0] = 3;
  EXPECT_EQ(user_error([&] { parse(bytes); }),
            "f.safetensors: a header of 3 bytes in a file of 10: truncated, or not a safetensors file");
  for (const uint64_t length : {uint64_t{100'000'000}, uint64_t{100} << 20, ~uint64_t{0}}) {
    std::memcpy(bytes.data(), &length, sizeof length);
    EXPECT_EQ(user_error([&] { parse(bytes); }),
              "f.safetensors: a header of " + std::to_string(length) +
                  " bytes, expected at most 32000000: not a safetensors file, or a damaged one");
  }
}

TEST(SafetensorsFile, RefusesHeadersThatAreNotOneHonestObject) {
  EXPECT_EQ(refusal("[]", 0), "f.safetensors: the header does not begin with a brace: not a safetensors file");
  EXPECT_TRUE(refusal("{\"a\":", 0).starts_with("f.safetensors: not valid JSON: parse error at line 1, column 6"));
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}})", 0),
            "f.safetensors: key \"a\" occurs twice");
  EXPECT_EQ(refusal(R"({"__metadata__":{"k":1}})", 0), "f.safetensors: __metadata__ key \"k\" is 1, expected a string");
  EXPECT_EQ(refusal(R"({"__metadata__":[]})", 0), "f.safetensors: __metadata__ is [], expected an object");
}

TEST(SafetensorsFile, NamesTheTensorThatATruncatedFileCutsOff) {
  const TempFolder folder;
  const std::vector<float> values(100, 1.0f);
  const std::vector<TensorData> tensors = {{"first", Dtype::kF32, {50}, values.data()},
                                           {"last", Dtype::kF32, {50}, values.data()}};
  write_safetensors(folder / "m.safetensors", tensors);
  std::filesystem::resize_file(folder / "m.safetensors", std::filesystem::file_size(folder / "m.safetensors") - 1);
  EXPECT_EQ(
      user_error([&] { SafetensorsFile::open(folder / "m.safetensors"); }),
      (folder / "m.safetensors").string() +
          ": tensor \"last\": data_offsets [200,400] reach beyond the 399 bytes of data: the file is truncated or "
          "its header lies");
}

// Cut anywhere, with any byte changed: a file or a UserError, never anything else (under the sanitizers too).
TEST(SafetensorsFile, SurvivesEveryTruncationAndEveryChangedByte) {
  const std::string bytes = safetensors_bytes(
      R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"I64","shape":[1],"data_offsets":[4,12]}})",
      std::string(12, '\x11'));
  for (std::size_t length = 0; length < bytes.size(); ++length) user_error([&] { parse(bytes.substr(0, length)); });
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      try {
        (void)parse(changed).tensors();
      } catch (const UserError&) {
      }
    }
  }
}

TEST(SafetensorsWriter, RoundTripsInterleavedPiecesAndMetadata) {
  const TempFolder folder;
  const auto path = folder / "t.safetensors";
  SafetensorsWriter writer(path, {{"flags", Dtype::kU8, {3}}, {"x", Dtype::kF32, {2, 2}}, {"i", Dtype::kI64, {1}}},
                           {{"checksum", "????"}, {"title", "line\n\"two\""}});
  writer.write_values<float>("x", std::vector<float>{1, 2});
  writer.write_values<uint8_t>("flags", std::vector<uint8_t>{1, 0, 1});
  writer.write_values<int64_t>("i", std::vector<int64_t>{-9});
  writer.write_values<float>("x", std::vector<float>{3, 4});
  writer.set_metadata("checksum", "abcd");
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();

  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata(), (Metadata{{"checksum", "abcd"}, {"title", "line\n\"two\""}}));
  EXPECT_EQ(file.read_f32(file.require("x")), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(file.read_i32(file.require("i")), (std::vector<int32_t>{-9}));
  EXPECT_EQ(file.bytes(file.require("flags"))[2], std::byte{1});
  EXPECT_EQ(folder.entries(), 1);
  // Padded header, wide dtypes first: every tensor is aligned to its element size within the file.
  uint64_t length = 0;
  std::memcpy(&length, test::read_file(path).data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
  for (const TensorInfo& tensor : file.tensors()) EXPECT_EQ(tensor.begin % dtype_bytes(tensor.dtype), 0u);
}

TEST(SafetensorsWriter, IsAByteIdenticalFunctionOfItsInput) {
  const TempFolder folder;
  const std::vector<float> values = {1, 2, 3};
  const std::vector<TensorData> tensors = {{"w", Dtype::kF32, {3}, values.data()}};
  write_safetensors(folder / "a", tensors, {{"k", "v"}});
  write_safetensors(folder / "b", tensors, {{"k", "v"}});
  EXPECT_EQ(test::read_file(folder / "a"), test::read_file(folder / "b"));
}

TEST(SafetensorsWriter, LeavesNothingWithoutFinishAndKeepsTheOldFile) {
  const TempFolder folder;
  test::write_file(folder / "t", "old");
  {
    SafetensorsWriter writer(folder / "t", {{"x", Dtype::kU8, {4}}});
    writer.write_values<uint8_t>("x", std::vector<uint8_t>{1, 2});
    EXPECT_EQ(folder.entries(), 2);
  }
  EXPECT_EQ(folder.entries(), 1);
  EXPECT_EQ(test::read_file(folder / "t"), "old");
}

TEST(SafetensorsWriter, RefusesAFolderThatIsNotThere) {
  const TempFolder folder;
  const std::vector<TensorData> none;
  EXPECT_EQ(user_error([&] { write_safetensors(folder / "no/t", none); }),
            (folder / "no/t").string() + ": cannot create: No such file or directory");
}

// A file-size limit stands in for the full disk: write() fails in the middle in the same way.
TEST(SafetensorsWriter, LeavesNothingWhenTheDiskFills) {
  const TempFolder folder;
  const std::vector<uint8_t> values(100'000, 1);
  const std::vector<TensorData> tensors = {{"x", Dtype::kU8, {100'000}, values.data()}};
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{.rlim_cur = 50'000, .rlim_max = old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    write_safetensors(folder / "t", tensors);
  } catch (const UserError& error) {
    message = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, (folder / "t").string() + ": cannot write: File too large");
  EXPECT_EQ(folder.entries(), 0);
}

TEST(SafetensorsWriterDeath, ChecksThatEveryDeclaredByteWasWritten) {
  const TempFolder folder;
  EXPECT_DEATH(
      {
        SafetensorsWriter writer(folder / "t", {{"x", Dtype::kU8, {4}}});
        writer.finish();
      },
      "written_");
}

}  // namespace
}  // namespace kv
