#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string_view>
#include <system_error>

#include "harness/build_info.h"
#include "harness/cli/mistakes.h"
#include "harness/cli/verbs.h"
#include "harness/failure.h"
#include "harness/notice.h"
#include "harness/ranks/agreement.h"
#include "kernels/cpu/parallel.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr const char* kDescription =
    "kvlab compares KV-cache policies on recorded traces and real models: a spec in, rows, tables and plots out.";

constexpr const char* kExamples =
    "Examples:\n"
    "  kvlab run experiments/quickstart.yaml\n"
    "  kvlab new my.yaml --policies full,h2o,snapkv\n"
    "  kvlab run experiments/quickstart.yaml --set samples=1 --set 'axes.budget=[128, 256]' --out /tmp/try\n"
    "  kvlab list policies\n"
    "  kvlab describe snapkv\n"
    "  kvlab inspect experiments/models/reference\n"
    "Every verb has its own --help. The exit code is 0 when all is well, 1 when something failed, 2 for a mistake of "
    "the\n"
    "caller's, which is one line.";

std::string version() {
  const BuildInfo& info = build_info();
  return fmt::format("kvlab, commit {}{} ({}, {})", info.commit, info.dirty ? " with changes" : "", info.compiler,
                     info.build_type);
}

// CLI11 counts help and version as "errors" of code 0.
int refuse(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  notice(explain(app, error));
  return 2;
}

int parse(CLI::App& app, int argc, const char* const* argv, const Verbs& verbs) {
  try {
    app.parse(argc, argv);
    return verbs.exit_code;
  } catch (const CLI::ParseError& error) {
    return refuse(app, error);
  }
}

// More than any machine has: scratch memory would be allocated for each, and fail far from here.
void check_threads() {
  constexpr int kMostThreads = 1024;
  if (cpu::thread_count() <= kMostThreads) return;
  throw UserError(
      fmt::format("OMP_NUM_THREADS asks for {} threads, expected at most {}", cpu::thread_count(), kMostThreads));
}

// Whether stdout is a pipe whose reader has gone (kvlab list | head -1).
bool reader_has_gone() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

bool is_broken_pipe(const std::exception& error) {
  const auto* failed = dynamic_cast<const std::system_error*>(&error);
  return failed && failed->code() == std::errc::broken_pipe;
}

int run(int argc, const char* const* argv) try {
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    const char* const help[] = {argv[0], argc > 2 ? argv[2] : "--help", "--help"};
    return run(argc > 2 ? 3 : 2, help);
  }
  check_threads();
  CLI::App app(kDescription, "kvlab");
  app.footer(kExamples);
  app.set_version_flag("--version", version());
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option_function<int>(
         "--threads",
         [](int threads) {
           ::setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 1);  // ranks that divide cores ask for it
           cpu::set_thread_count(threads);
         },
         "threads to compute with (default: OMP_NUM_THREADS, else every core that may be used); results do not depend "
         "on it")
      ->check(CLI::Range(1, 1024))
      ->trigger_on_parse();
  Verbs verbs;
  add_new(app, verbs);
  add_run(app, verbs);
  add_validate(app, verbs);
  add_list(app, verbs);
  add_describe(app, verbs);
  add_train(app, verbs);
  add_plan(app, verbs);
  add_profile(app, verbs);
  add_record(app, verbs);
  add_inspect(app, verbs);
  add_report(app, verbs);
  add_compare(app, verbs);
  add_score(app, verbs);
  add_tokenize(app, verbs);
  add_compress(app, verbs);
  add_generate(app, verbs);
  add_write(app, verbs);
  check_verb(app, argc, argv);
  return parse(app, argc, argv, verbs);
} catch (const SaidElsewhere& said) {
  return said.exit_code();
} catch (const std::exception& error) {
  if (is_broken_pipe(error) && reader_has_gone()) return 0;  // run_program says it
  const Failure failure = failure_of(error);
  notice("kvlab: " + failure.message);
  return failure.exit_code;
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  const int code = run(argc, argv);
  // What was printed has arrived, or the exit code says otherwise: a full disk must not look like success.
  if (code != 0 || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) return code;
  if (reader_has_gone()) {  // who does not want to know the rest is told no more: the end that a shell expects
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
  }
  notice("kvlab: the output could not be written");
  return 1;
}

}  // namespace kv
