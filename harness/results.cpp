#include "harness/results.h"

#include "harness/files.h"
#include "harness/report/report.h"
#include "harness/rows_file.h"

namespace kv {

std::string write_results(const ResultFolder& folder, const Spec& spec, Draw draw, const WrittenRows& rows,
                          const std::string& manifest) {
  folder.replace([&](const std::filesystem::path& files) {
    write_rows_atomically(files / "rows.csv", rows.csv);
    write_atomically(files / "spec.yaml", spec.resolved);
    write_atomically(files / "manifest.json", manifest);
  });
  if (draw == Draw::kLater) return {};
  std::string tables;
  folder.replace([&](const std::filesystem::path& files) {
    tables =
        write_report(rows.table, "rows.csv", files, spec.report,
                     {.title = spec.title, .question = spec.question, .spec = spec.resolved, .manifest = manifest});
  });
  return tables;
}

}  // namespace kv
