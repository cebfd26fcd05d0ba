#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "harness/report/plan.h"
#include "harness/spec/map_reader.h"

namespace kv {

// Reads a map of what is to be drawn, whose values name columns of rows.csv: standard ones or axes.
class ReportReader : public MapReader {
 public:
  ReportReader(const YamlDocument& document, const YAML::Node& node, std::string owner,
               std::span<const std::string> axes);
  explicit ReportReader(MapReader blank) : MapReader(std::move(blank)) {}

  // A file name and HTML anchor that no other table or plot has; the errors that follow name it, too.
  std::string name(const std::string& kind, std::set<std::string>& used_names);
  std::string column(const std::string& key, std::string_view help);  // empty where the key is absent
  std::vector<std::string> columns(const std::string& key, std::string_view help);
  Where where_map(const std::string& key, std::string_view help);
  Labels labels(const std::string& key, std::string_view help);
  Measure measure();
  // `key`: whose value names the column, `place`: where it stands. A listing's columns may be of the values, too.
  void check_column(const YAML::Node& place, const std::string& key, const std::string& name) const;
  std::span<const std::string> axes() const { return axes_; }

 private:
  std::span<const std::string> axes_{};
};

}  // namespace kv
