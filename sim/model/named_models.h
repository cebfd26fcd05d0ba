#pragma once

#include <span>
#include <string_view>

#include "sim/model/model_config.h"

namespace kv {

// A real model's shape by name: what time and memory depend on, without its weights.
struct NamedModel {
  std::string_view name;
  std::string_view summary;  // one line, with its repository on Hugging Face
  std::string_view config;   // the keys of its config.json that this project reads

  ModelConfig parse() const;
};

std::span<const NamedModel> named_models();

// Throws UserError naming the known ones when `name` is none of them.
const NamedModel& find_named_model(std::string_view name);

}  // namespace kv
