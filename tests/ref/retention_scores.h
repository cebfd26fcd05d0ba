#pragma once

namespace kv::ref {

// log Σ_{h = 1..horizon} β^{age + h − 1} by its definition, term by term (kernels/retention_scores.h).
double retention_score(double log_retention, double age, int horizon);

}  // namespace kv::ref
