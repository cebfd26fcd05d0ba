#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/learned/learner.h"
#include "sim/model/model_identity.h"
#include "sim/model/source_info.h"
#include "sim/policy/slot.h"

namespace kv {

// What was learned for a slot on one model: <model folder>/learned/<name>.safetensors. One tensor a part, by its scope
// [layers, kv_heads, …], [layers, …] or […]; what it is of stands in the metadata, there, too, the parts that are not
// of heads and then, since a tensor no longer says them, layers and KV heads. Matrices, nearly all of a file, are
// written as bf16, whose rounding averages out in their products; vectors and numbers, where a bias of ten would lose
// what sets it apart from the next one, as f32. Read are f16, bf16 and f32. Checkpoints of a training keep f32.
struct LearnedFile {
  std::string learner;                          // the slot that reads it: "foresight-kv"
  std::string model, fingerprint;               // the model's name; SHA-256 of its files
  std::map<std::string, std::string> settings;  // Learner::settings()
  std::string origin;                           // what trained it, and on what: a JSON object, nobody's business here
  int layers = 0, kv_heads = 0;
  std::vector<LearnedPart> parts;  // in a file that was read, in the order of their bytes
  std::vector<float> parameters;   // of all, where layout() says

  LearnedLayout layout() const { return {parts, layers, kv_heads}; }
};

inline constexpr std::string_view kTrainMakesOne = "`kvlab train SPEC` makes one";

// As the name of a file: none, but the parameters that a training begins with.
inline constexpr std::string_view kInitialWeights = "initial";

// <model folder>/learned/<name>.safetensors; a name that ends in .safetensors is a path. Either may lie packed
// (sim/io/stored_path.h).
std::filesystem::path learned_path(const std::filesystem::path& model_folder, std::string_view name);

void write_learned(const std::filesystem::path& path, const LearnedFile& learned);

// The parameters as a file of them holds them.
std::vector<float> as_stored(const LearnedFile& learned);

// Throws UserError "<owner>: <path> …" for whatever is not as write_learned writes it: another format, version, dtype
// or shape, numbers that are not finite.
LearnedFile read_learned(const std::filesystem::path& path, std::string_view owner);

// What a slot wants of its file.
struct LearnedDemand {
  std::map<std::string, std::string> settings;  // all that it must say
  // What it must hold on a model of that shape; how much of it may be for the file's own settings to say.
  std::function<std::vector<LearnedPart>(const LearnedFile&, const SourceInfo&)> parts;
  std::string_view remedy = kTrainMakesOne;  // ends a complaint: how to come by such a file, or to do without
};

// The same as a slot's check() wants it: UserError, too, where there is no such file, or it is of another slot, model
// or settings, or its tensors are not those of its settings and the model. A trace or random weights have no files to
// compare, only a shape. Returns the file for the slot's load(), or none where the model itself is not there, which has
// learned nothing either.
std::vector<InputFile> check_learned(const std::filesystem::path& path, std::string_view owner,
                                     const ModelIdentity& model, const LearnedDemand& demand);

// What load() gets must still be what check_learned() saw.
LearnedFile load_learned(const InputFile& checked, std::string_view owner);

// A setting that is a number; UserError where it is none from `least` to `most`.
double learned_setting(const LearnedFile& learned, const std::string& name, double least, double most,
                       std::string_view owner);

// The parameters in the order of `parts`; UserError where the file's have other names, shapes or owners, or are more.
std::vector<float> parameters_as(const LearnedFile& learned, std::span<const LearnedPart> parts,
                                 std::string_view owner);

}  // namespace kv
