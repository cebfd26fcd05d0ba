#include "harness/spec/model_reader.h"

#include <fmt/format.h>

namespace kv {
namespace {

std::string read_shape(MapReader& map) {
  return map.required_text("random", "the name of a shape (kvlab list models), its weights drawn from the seed");
}

ModelChoice read_model(const YamlDocument& document, const YAML::Node& node) {
  if (!node.IsMap()) {
    if (!node.IsScalar() || node.Scalar().empty()) document.fail(node, "model: expected a path or {random: NAME}");
    return {.source = {node.Scalar(), document.where(node)}};
  }
  MapReader map(document, node, "model");
  ModelChoice choice{.random = true};
  choice.source.text = read_shape(map);
  choice.source.where = map.where("random");
  map.finish();
  return choice;
}

}  // namespace

std::vector<ModelChoice> read_models(const YamlDocument& document, const YAML::Node& node) {
  std::vector<ModelChoice> models;
  for (const YAML::Node& item : items_of(node)) models.push_back(read_model(document, item));
  return models;
}

std::vector<DeclaredParam> model_keys() {
  MapReader map = MapReader::blank();
  read_shape(map);
  return map.declared();
}

}  // namespace kv
