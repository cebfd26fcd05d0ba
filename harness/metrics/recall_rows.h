#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/metrics/kept_importance.h"
#include "harness/metrics/metric.h"

namespace kv {

// What metric `recall` adds up. Of a head: sums over its events. Of a layer or sample: sums over its heads of their
// means over events.
struct RecallSums {
  int64_t count = 0;  // events, or heads, with importance of their own
  double recall = 0;
  double oracle = 0;
  double entries = 0;
  double hits = 0;
  // Parts of a layer's loss, to which every head adds.
  double loss = 0;
  double oracle_loss = 0;
  double missed = 0;
  double false_positives = 0;

  void add_event(const KeptImportance& head, double divisor);
  void add_means(const RecallSums& head, int64_t layer_events);
};

struct RecallRows {
  Measured place;      // sample, layer, head
  std::string suffix;  // "", "_layer", "_head"
  bool all_terms = false;
  int64_t layers = 1;  // that the sums are over
};

// The rows that recall.cpp lists; with a reason, rows that only say it.
void add_recall_rows(const RecallRows& to, const RecallSums& sums, const char* skipped, std::vector<Measured>& rows);

}  // namespace kv
