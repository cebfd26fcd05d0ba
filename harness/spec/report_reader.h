#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "harness/report/plan.h"
#include "harness/spec/map_reader.h"

namespace kv {

// What rows have by name, beside the standard columns, that tables and plots may speak of.
struct RowNames {
  std::span<const std::string> axes{};
  std::span<const std::string> numbers{};  // metrics whose rows hold one number of a whole sample
};

// Reads a map of what is to be drawn, whose values name columns of rows.csv: standard ones or axes.
class ReportReader : public MapReader {
 public:
  ReportReader(const YamlDocument& document, const YAML::Node& node, std::string owner, const RowNames& names);
  explicit ReportReader(MapReader blank) : MapReader(std::move(blank)) {}

  // A file name and HTML anchor that no other table or plot has; the errors that follow name it, too.
  std::string name(const std::string& kind, std::set<std::string>& used_names);
  std::string column(const std::string& key, std::string_view help);  // empty where the key is absent
  // Or such a metric.
  std::string column_or_number(const std::string& key, std::string_view help);
  bool is_column(const std::string& name) const;
  std::vector<std::string> columns(const std::string& key, std::string_view help);
  Where where_map(const std::string& key, std::string_view help);
  Labels labels(const std::string& key, std::string_view help);
  Measure measure();
  std::optional<EqualSize> equal_size(const std::string& key, std::string_view help);
  // `key`: whose value names the column, `place`: where it stands. A listing's columns may be of the values, too.
  void check_column(const YAML::Node& place, const std::string& key, const std::string& name) const;
  const RowNames& names() const { return names_; }

 private:
  std::vector<std::string> columns_for(const std::string& key) const;
  // One of the metrics above, named by the key of a map.
  void check_number(const YAML::Node& place, const std::string& key, const std::string& name) const;

  RowNames names_{};
};

}  // namespace kv
