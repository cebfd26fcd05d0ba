#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "harness/progress.h"

namespace kv {

enum class Start { kResume, kFresh };
enum class Draw { kNow, kLater };

class Ranks;

struct RunOptions {
  std::filesystem::path out;  // the result folder, created where missing
  Start start = Start::kResume;
  Draw draw = Draw::kNow;  // kLater: no tables, plots and index.html until write_report (harness/report/report.h)
  Verbosity verbosity = Verbosity::kNormal;
  double checkpoint_seconds = 15;            // of a training: what a kill loses at most
  std::filesystem::path weights{};           // where protocol train puts what it learned; empty: the model's folder,
  bool keeps_beside = false;                 // or out/learned where that has others' weights, which stay
  std::vector<std::string> overrides{};      // as given to parse_spec, for the manifest
  Ranks* ranks = nullptr;                    // who share the work (harness/ranks/ranks.h); null: this process alone
  std::function<void()> after_case = [] {};  // called when a case is safe on disk, or a checkpoint
};

struct RunSummary {
  int cases = 0;   // one a case and sample; one a case where samples are repetitions
  int reused = 0;  // of which finished earlier
  int skipped = 0;
  int failed = 0;                                // kept something else than asked
  std::vector<std::string> problems{};           // one line a skipped or failed case
  std::string markdown{};                        // the tables; empty where nothing was drawn
  std::vector<std::filesystem::path> weights{};  // files that a training wrote, or found to be what it would write
};

}  // namespace kv
