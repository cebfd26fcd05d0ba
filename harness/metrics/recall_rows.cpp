#include "harness/metrics/recall_rows.h"

namespace kv {

void RecallSums::add_event(const KeptImportance& head, double divisor) {
  loss += (head.total - head.kept) / divisor;
  oracle_loss += (head.total - head.best) / divisor;
  missed += head.missed / divisor;
  false_positives += head.false_positives / divisor;
  if (head.total <= 0) return;
  ++count;
  recall += head.kept / head.total;
  oracle += head.best / head.total;
  entries += static_cast<double>(head.entries);
  hits += static_cast<double>(head.hits);
}

void RecallSums::add_means(const RecallSums& head, int64_t layer_events) {
  const double all = static_cast<double>(layer_events);
  loss += head.loss / all;
  oracle_loss += head.oracle_loss / all;
  missed += head.missed / all;
  false_positives += head.false_positives / all;
  if (head.count == 0) return;
  ++count;
  const double events = static_cast<double>(head.count);
  recall += head.recall / events;
  oracle += head.oracle / events;
  entries += head.entries / events;
  hits += head.hits / events;
}

void add_recall_rows(const RecallRows& to, const RecallSums& sums, const char* skipped, std::vector<Measured>& rows) {
  const double heads = static_cast<double>(sums.count);
  const double layers = static_cast<double>(to.layers);
  const auto add = [&](const char* name, double value, const char* unit, const char* reason) {
    Measured row = to.place;
    row.metric = name + to.suffix;
    if (reason) {
      row.skipped = reason;
    } else {
      row.value = value;
      row.unit = unit;
    }
    rows.push_back(std::move(row));
  };
  // A head without importance has a loss, zero, and nothing else.
  const bool judged = skipped || sums.count > 0;
  if (judged) add("recall", sums.recall / heads, "", skipped);
  if (to.suffix.empty()) {
    add("recall_oracle", sums.oracle / heads, "", skipped);
    add("optimality_gap", sums.oracle / heads - sums.recall / heads, "", skipped);
  }
  add("eviction_loss", sums.loss / layers, "", skipped);
  if (!to.all_terms) return;
  add("eviction_loss_oracle", sums.oracle_loss / layers, "", skipped);
  add("eviction_loss_gap", (sums.loss - sums.oracle_loss) / layers, "", skipped);
  add("missed_importance", sums.missed / layers, "", skipped);
  add("false_positive_importance", sums.false_positives / layers, "", skipped);
  if (!judged) return;
  add("hits", sums.hits / heads, "tokens", skipped);
  add("misses", (sums.entries - sums.hits) / heads, "tokens", skipped);
  add("false_positives", (sums.entries - sums.hits) / heads, "tokens", skipped);
  add("hit_share", sums.hits / sums.entries, "", skipped || sums.entries > 0 ? skipped : "no candidate stays");
}

}  // namespace kv
