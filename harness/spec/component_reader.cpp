#include "harness/spec/component_reader.h"

#include <fmt/format.h>

#include "harness/files.h"

namespace kv {
namespace {

std::map<std::string, std::vector<std::string>> read_only(const YamlDocument& document, const YAML::Node& node) {
  std::map<std::string, std::vector<std::string>> only;
  if (!is_given(node)) return only;
  if (!node.IsMap()) document.fail(node, "policy: only: expected a map of axis: [values]");
  for (const auto& entry : node) {
    for (const YAML::Node& value : items_of(entry.second)) {
      if (!value.IsScalar()) document.fail(value, "policy: only: expected a value of the axis, or a list of them");
      only[entry.first.Scalar()].push_back(value.Scalar());
    }
  }
  return only;
}

// A name, or {name: {option: value}}.
SlotChoice read_slot(const YamlDocument& document, const YAML::Node& node, const std::string& kind) {
  if (node.IsScalar() && !node.Scalar().empty()) return {.name = node.Scalar(), .where = document.where(node)};
  if (!node.IsMap() || node.size() != 1 || !node.begin()->second.IsMap()) {
    document.fail(node, fmt::format("{0}: expected a name or {{NAME: {{option: value}}}}", kind));
  }
  const YAML::Node name = node.begin()->first;
  MapReader map(document, node.begin()->second, kind);
  return {.name = name.Scalar(), .options = map.options(), .where = document.where(name)};
}

Component read_keys(MapReader& map, const std::string& kind) {
  Component component;
  component.name =
      map.required_text(kind, fmt::format("its name (kvlab list); every other key is an option of its own, "
                                          "which kvlab describe NAME lists"));
  component.label = component.name;
  if (kind != "policy") return component;
  component.only = read_only(
      map.document(), map.find("only", "{axis: [values]}", "values of axes at which it runs; at all where absent"));
  const auto fill = [&](SlotChoice& slot, const char* slot_kind, const char* help) {
    const YAML::Node node = map.find(slot_kind, "NAME or {NAME: {option: value}}", help);
    if (!node.IsDefined()) return;
    slot = read_slot(map.document(), node, slot_kind);
    component.label += "+" + slot.name;
  };
  fill(component.slots.allocation, "allocation", "how budgets are divided; uniform where absent");
  fill(component.slots.admission, "admission", "which tokens outlive a window; all of them (none) where absent");
  fill(component.slots.selection, "selection", "which pages a step of one token reads; all of them where absent");
  const std::string label = map.text("label", "", "what rows and tables call it; its name where absent");
  if (!label.empty()) component.label = label;
  return component;
}

}  // namespace

Component read_component(const YamlDocument& document, const YAML::Node& node, const std::string& kind) {
  if (node.IsScalar() && !node.Scalar().empty()) {
    return {.name = node.Scalar(), .label = node.Scalar(), .where = document.where(node)};
  }
  if (!node.IsMap()) document.fail(node, fmt::format("{0}: expected a name or {{{0}: name, option: value}}", kind));
  MapReader map(document, node, kind);
  Component component = read_keys(map, kind);
  component.where = document.where(node);
  component.options = map.options();
  return component;
}

std::vector<Component> read_components(const YamlDocument& document, const YAML::Node& list, const std::string& kind) {
  std::vector<Component> components;
  for (const YAML::Node& item : items_of(list)) components.push_back(read_component(document, item, kind));
  return components;
}

Component parse_component(const std::string& yaml_or_file, const std::string& kind) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(yaml_or_file, error);
  const std::string text = is_file ? read_file(yaml_or_file) : yaml_or_file;
  const std::string owner = is_file ? yaml_or_file : "--" + kind;
  YAML::Node node;
  try {
    node = YAML::Load(text);
  } catch (const YAML::Exception& failed) {
    throw UserError(fmt::format("{}:{}:{}: {}", owner, failed.mark.line + 1, failed.mark.column + 1, failed.msg));
  }
  if (node.IsScalar() && !node.Scalar().empty()) {
    return {.name = node.Scalar(), .label = node.Scalar(), .options = {}, .where = owner};
  }
  if (!node.IsMap()) throw UserError(fmt::format("{0}: expected a name or {{{1}: name, option: value}}", owner, kind));
  const YamlDocument document(text, owner);
  return read_component(document, document.root(), kind);
}

std::vector<KeySection> component_keys(const std::string& kind) {
  MapReader map = MapReader::blank();
  read_keys(map, kind);
  return {{fmt::format("a {}: its name, or a map with these keys", kind), map.declared()}};
}

}  // namespace kv
