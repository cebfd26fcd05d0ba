#include "harness/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "harness/notice.h"

namespace kv {
namespace {

constexpr int kBarCells = 24;
constexpr double kSecondsBetweenLines = 10;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::string clock_text(double seconds) {
  const long rounded = std::lround(seconds);
  if (rounded >= 3600) return fmt::format("{}:{:02}:{:02}", rounded / 3600, rounded / 60 % 60, rounded % 60);
  return fmt::format("{}:{:02}", rounded / 60, rounded % 60);
}

Progress::Progress(Verbosity verbosity, int total)
    : verbosity_(verbosity), terminal_(isatty(STDERR_FILENO) == 1), total_(total), start_(Clock::now()) {
  last_line_ = start_ - std::chrono::seconds(static_cast<int>(kSecondsBetweenLines));
}

Progress::~Progress() {
  if (verbosity_ == Verbosity::kNormal && terminal_ && finished_ > 0) std::fputs("\n", stderr);
}

void Progress::doing(const std::string& what) {
  what_ = what;
  if (terminal_) draw();
}

void Progress::going_on(const std::string& what) {
  what_ = what;
  draw();
}

void Progress::done(int cases) {
  finished_ += cases;
  computed_ += cases;
  draw();
}

void Progress::reused(int cases) {
  finished_ += cases;
  if (terminal_) draw();
}

void Progress::finished(int cases) {
  if (cases <= finished_) return;
  done(cases - finished_);
}

std::string Progress::status() const {
  std::string text = fmt::format("{}/{} cases", finished_, total_);
  if (computed_ > 0) {
    const double seconds_a_case = seconds_since(start_) / computed_;
    text += seconds_a_case < 1 ? fmt::format(", {:.1f} cases/s", 1 / seconds_a_case)
                               : fmt::format(", {:.1f} s a case", seconds_a_case);
    text += fmt::format(", {} left", clock_text(seconds_a_case * (total_ - finished_)));
  }
  return text;
}

void Progress::draw() {
  if (verbosity_ == Verbosity::kQuiet) return;
  if (terminal_) {
    const int filled = total_ > 0 ? kBarCells * finished_ / total_ : kBarCells;
    const std::string bar(static_cast<size_t>(filled), '#'), unfilled(static_cast<size_t>(kBarCells - filled), '.');
    std::fputs(fmt::format("\r\033[K[{}{}] {}  {}", bar, unfilled, status(), what_).c_str(), stderr);
    std::fflush(stderr);
    return;
  }
  if (finished_ < total_ && seconds_since(last_line_) < kSecondsBetweenLines) return;
  last_line_ = Clock::now();
  notice(fmt::format("{}  {}", status(), what_));
}

}  // namespace kv
