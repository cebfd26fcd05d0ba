#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "harness/rows.h"

namespace kv {

// What tells a sample from others: model, data, number and seed.
std::vector<std::string> sample_key(const Row& row);

// The documents that samples were drawn from, where rows name them (kDocumentMetric).
class Documents {
 public:
  explicit Documents(const RowTable& table);
  // Of the row's sample; empty where none is known.
  std::string of(const Row& row) const;

 private:
  std::map<std::vector<std::string>, std::string> names_;
};

// Samples by document, for a bootstrap that draws documents (BootstrapOptions::clusters). A sample without one is a
// cluster alone.
class Clusters {
 public:
  void add(const std::string& document);
  std::span<const int> numbers() const { return numbers_; }

 private:
  std::vector<int> numbers_;
  std::map<std::string, int> known_;
  int count_ = 0;
};

}  // namespace kv
