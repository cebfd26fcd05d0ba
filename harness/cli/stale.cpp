#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/cli/experiments.h"
#include "harness/cli/run_spec.h"
#include "harness/notice.h"
#include "harness/protocols/protocol.h"
#include "harness/result_origin.h"
#include "harness/results_index.h"
#include "harness/run.h"
#include "harness/staleness.h"
#include "kernels/error.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

class Refresh {
 public:
  Refresh(const fs::path& results, StaleAction action, Verbosity verbosity, Verbs& verbs)
      : results_(results), action_(action), verbosity_(verbosity), verbs_(verbs) {}

  void refresh_spec(const std::string& file) {
    try {
      const Spec spec = load_named_spec(file);
      if (!spec.protocol->open && !spec.protocol->learns && spec.benchmarks.text.empty()) {
        notice(fmt::format("{}: protocol {} makes no rows; kvlab {} {} makes what it does", spec.name,
                           spec.protocol->name, spec.protocol->verb, file));
        return;
      }
      std::vector<ResultOrigin> origins = results_of(spec.name, results_);
      if (origins.empty()) origins.push_back({.folder = results_ / spec.name, .experiment = spec.name});
      for (const ResultOrigin& origin : origins) refresh_result(file, origin);
    } catch (const UserError& error) {
      refuse(error.what());
    }
  }

  bool has_written() const { return has_written_; }

  void say_sum() const {
    notice(fmt::format("{} fresh, {} {}, {} drawn again, {} left out of date", fresh_, made_,
                       action_ == StaleAction::kRun ? "made again" : "to be made again", drawn_, left_));
  }

 private:
  void refresh_result(const std::string& file, const ResultOrigin& origin) {
    const std::string name = origin.folder.filename().string();
    try {
      const Spec spec = load_named_spec(file, origin.overrides);
      ResultState state;
      if (fs::exists(origin.folder / "manifest.json")) {
        state = check_result(origin.folder, spec);
      } else {
        state.reasons.emplace_back("there is no result yet");
      }
      if (!state.reasons.empty()) {
        notice(fmt::format("{}: stale: {}", name, fmt::join(state.reasons, "; ")));
        make(name, spec, origin);
      } else if (state.page_differs) {
        draw(name, spec, origin);
      } else {
        notice(fmt::format("{}: fresh", name));
        ++fresh_;
      }
    } catch (const UserError& error) {
      refuse(fmt::format("{}: {}", name, error.what()));
    }
  }

  void make(const std::string& name, const Spec& spec, const ResultOrigin& origin) {
    if (action_ == StaleAction::kSay) {
      ++made_;
      return;
    }
    if (!has_device(name, spec)) return;
    const int before = verbs_.exit_code;
    verbs_.exit_code = 0;
    run_spec(spec, {.out = origin.folder, .verbosity = verbosity_, .overrides = origin.overrides}, verbs_);
    has_written_ = true;
    ++(verbs_.exit_code == 0 ? made_ : left_);
    verbs_.exit_code = std::max(before, verbs_.exit_code);
  }

  // A device that is not here is no mistake of the spec's.
  bool has_device(const std::string& name, const Spec& spec) {
    if (!spec.benchmarks.text.empty()) return true;
    try {
      make_backend(spec.device);
      return true;
    } catch (const UserError& error) {
      notice(fmt::format("{}: stays out of date: it is made on device {}, and {}", name, spec.device, error.what()));
    }
    ++left_;
    verbs_.exit_code = std::max(verbs_.exit_code, 1);
    return false;
  }

  void draw(const std::string& name, const Spec& spec, const ResultOrigin& origin) {
    notice(fmt::format("{}: fresh rows; the spec's title, tables, plots, paper or verdict are others{}", name,
                       action_ == StaleAction::kRun ? ": drawn again" : ""));
    if (action_ == StaleAction::kRun) {
      adopt_spec(origin.folder, spec);
      has_written_ = true;
    }
    ++drawn_;
  }

  void refuse(const std::string& message) {
    notice(fmt::format("kvlab: {}", message));
    ++left_;
    verbs_.exit_code = 2;
  }

  const fs::path& results_;
  StaleAction action_;
  Verbosity verbosity_;
  Verbs& verbs_;
  int fresh_ = 0, made_ = 0, drawn_ = 0, left_ = 0;
  bool has_written_ = false;
};

}  // namespace

void refresh_results(const std::vector<std::string>& specs, const fs::path& results, StaleAction action,
                     Verbosity verbosity, Verbs& verbs) {
  Refresh refresh(results, action, verbosity, verbs);
  for (const std::string& spec : specs) {
    if (specs.size() > 1) {
      notice(fmt::format("[{}/{}] {}", &spec - specs.data() + 1, specs.size(), fs::path(spec).stem().string()));
    }
    refresh.refresh_spec(spec);
  }
  refresh.say_sum();
  if (refresh.has_written()) refresh_index(results);
}

}  // namespace kv
