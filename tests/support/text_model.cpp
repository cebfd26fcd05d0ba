#include "tests/support/text_model.h"

#include <nlohmann/json.hpp>

#include "harness/files.h"
#include "sim/io/stored_path.h"
#include "tests/support/paths.h"

namespace kv::ref {

namespace {

namespace fs = std::filesystem;

bool shows_itself(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173); }

}  // namespace

std::string byte_in_alphabet(int byte) {
  int code = byte;
  if (!shows_itself(byte)) {
    code = 256;
    for (int before = 0; before < byte; ++before) code += shows_itself(before) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

void make_text_model(const fs::path& folder) {
  fs::create_directories(folder);
  for (const char* file : {"config.json", "model.safetensors"}) {
    const fs::path stored = stored_file(source_path(std::string("tests/data/llama/") + file));
    fs::create_symlink(stored, folder / stored.filename());
  }
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_in_alphabet(byte)] = byte;
  const nlohmann::json tokenizer = {
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}};
  write_atomically(folder / "tokenizer.json", tokenizer.dump());
}

}  // namespace kv::ref
