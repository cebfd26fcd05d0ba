#include "harness/results.h"

#include "harness/report/report.h"

namespace kv {

std::string write_results(const Spec& spec, const RunOptions& options, std::span<const Row> rows,
                          const std::string& manifest) {
  write_rows_atomically(options.out / "rows.csv", spec.axis_columns(), rows);
  write_atomically(options.out / "spec.yaml", spec.resolved);
  write_atomically(options.out / "manifest.json", manifest);
  if (options.draw == Draw::later) return {};
  return write_report(options.out, spec.report,
                      {.title = spec.title, .question = spec.question, .spec = spec.resolved, .manifest = manifest});
}

}  // namespace kv
