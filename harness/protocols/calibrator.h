#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/progress.h"
#include "harness/protocols/calibration_orders.h"
#include "harness/protocols/saved_profile.h"
#include "harness/spec/grid.h"
#include "harness/subject.h"
#include "sim/budget/calibration.h"
#include "sim/budget/oracle_importance.h"

namespace kv {

// The key of the spec that says what a profile counts losses in: options of ImportanceOptions::read_unit.
inline constexpr std::string_view kImportanceKey = "importance";
// That which says how orders are taken.
inline constexpr std::string_view kCalibrationKey = "calibration";

struct CalibrationOptions {
  std::string name;  // part of the file's; empty: the model's own profile
  int interval = 0;  // as in PrefillArgs
};
// UserError where the name could not be part of a file's.
CalibrationOptions read_calibration(Params& params);

// Reads the calibration's samples with one model of the spec and keeps what they say of every policy:
// harness/protocols/profiles.h tells how. All references must stay alive.
class Calibrator {
 public:
  // Runs all samples. UserError: the model or a context does not fit.
  Calibrator(const Spec& spec, Backend& backend, const Grid& grid, int model, Progress& progress);

  // The profile of each policy, then of the oracle's order; files in the model's own folder, yet to be written.
  std::vector<SavedProfile> profiles();

 private:
  void run(const Workload& workload);
  void take(const Exam& exam);
  std::filesystem::path file_of(const std::string& scorer, bool takes_prompts) const;
  SavedProfile profile_of(const std::string& label, const std::string& scorer, bool takes_prompts,
                          const Protection& protection, std::span<const CalibrationQuestion> questions);

  const Spec& spec_;
  Backend& backend_;
  const ModelIdentity& identity_;
  std::unique_ptr<Subject> subject_;
  ImportanceOptions importance_options_;
  CalibrationOptions calibration_options_;
  Progress& progress_;
  std::vector<Policy> policies_;
  Calibration calibration_;
  std::vector<std::unique_ptr<CalibrationQuestion::Values>> importance_;  // [questions]
  std::vector<std::unique_ptr<ScorerOrders::Orders>> oracle_orders_;      // [questions]
  std::vector<std::vector<std::unique_ptr<ScorerOrders>>> orders_;        // [policies][samples]
  std::vector<std::vector<CalibrationQuestion>> questions_;               // [policies], then the oracle's order
};

}  // namespace kv
