#include "harness/protocols/profiles.h"

#include <fmt/format.h>

#include "harness/files.h"
#include "harness/manifest.h"
#include "harness/protocols/calibrator.h"
#include "harness/protocols/protocol.h"
#include "harness/spec/grid.h"
#include "kernels/error.h"
#include "sim/budget/profile_file.h"

namespace kv {

std::vector<SavedProfile> make_profiles(const Spec& spec, const ProfileOptions& options) {
  if (spec.protocol->name != kProfileProtocol) {
    throw UserError(fmt::format("{}: kvlab profile expects 'protocol: {}'; other protocols are for kvlab run",
                                spec.file, kProfileProtocol));
  }
  if (!options.out.empty() && spec.models.size() > 1) {
    throw UserError(fmt::format("--out: takes one model, {} has {}", spec.file, spec.models.size()));
  }
  const Grid grid = make_grid(spec);
  int samples = 0;
  for (const Workload& workload : grid.workloads) samples += workload.samples;
  const auto backend = make_backend(spec.device);
  Progress progress(options.verbosity, samples);
  const std::string origin = origin_json(spec, backend->accelerator());
  std::vector<SavedProfile> all;
  for (int model = 0; model < static_cast<int>(spec.models.size()); ++model) {
    for (SavedProfile& calibrated : Calibrator(spec, *backend, grid, model, progress).profiles()) {
      calibrated.profile.origin = origin;
      if (!options.out.empty()) calibrated.file = options.out / calibrated.file.filename();
      std::error_code error;  // a folder that cannot be made is one that cannot be written to
      std::filesystem::create_directories(calibrated.file.parent_path(), error);
      write_atomically(calibrated.file, format_profile(calibrated.profile));
      all.push_back(std::move(calibrated));
    }
  }
  return all;
}

std::string profile_table(std::span<const SavedProfile> profiles) {
  std::string text =
      "| policy | removed | uniform | profile | each question's own | bound | other half / own half |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const SavedProfile& calibrated : profiles) {
    const ProfileLosses& losses = calibrated.profile.losses;
    for (const double removed : {0.5, 0.8}) {
      const size_t i = ratio_index(removed);
      std::string halves = "–";
      if (const auto& split = calibrated.profile.split_half) {
        halves = fmt::format("{:.4f}", removed == 0.5 ? split->half : split->four_fifths);
      }
      text +=
          fmt::format("| {} | {:.0f} % | {:.4f} | {:.4f} | {:.4f} | {:.4f} | {} |\n", calibrated.label, 100 * removed,
                      losses.uniform[i], losses.profile[i], losses.greedy[i], losses.bound[i], halves);
    }
  }
  return text;
}

}  // namespace kv
