#include "harness/clusters.h"

namespace kv {

std::vector<std::string> sample_key(const Row& row) {
  return {row.model, row.data, row.sample ? std::to_string(*row.sample) : "",
          row.seed ? std::to_string(*row.seed) : ""};
}

namespace {

// At other values of the axes a sample may be of another document: where texts are longer, fewer are long enough.
std::vector<std::string> draw_key(const Row& row) {
  std::vector<std::string> key = sample_key(row);
  key.insert(key.end(), row.axes.begin(), row.axes.end());
  return key;
}

}  // namespace

Documents::Documents(const RowTable& table) {
  for (const Row& row : table.rows) {
    if (row.metric == kDocumentMetric && row.skipped.empty()) names_.emplace(draw_key(row), row.text);
  }
}

std::string Documents::of(const Row& row) const {
  const auto name = names_.find(draw_key(row));
  return name == names_.end() ? std::string() : name->second;
}

void Clusters::add(const std::string& document) {
  numbers_.push_back(document.empty() ? count_ : known_.try_emplace(document, count_).first->second);
  if (numbers_.back() == count_) ++count_;
}

}  // namespace kv
