#pragma once

#include <chrono>
#include <string>

namespace kv {

enum class Verbosity { kQuiet, kNormal };

// "1:02:03", "4:05"; what a bar shows of a number of seconds.
std::string clock_text(double seconds);

// Progress on stderr: one bar that redraws itself on a terminal, otherwise a line now and then. Nothing when quiet.
class Progress {
 public:
  Progress(Verbosity verbosity, int total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void doing(const std::string& what);     // what the next stretch of work is
  void going_on(const std::string& what);  // how far a long stretch is; where there is no bar, a line now and then
  void done(int cases = 1);                // computed
  void reused(int cases);                  // taken from an earlier run: do not count for the rate
  void finished(int cases);                // so many in all, by whoever

 private:
  using Clock = std::chrono::steady_clock;

  void draw();
  std::string status() const;

  Verbosity verbosity_;
  bool terminal_;
  int total_;
  int finished_ = 0;
  int computed_ = 0;
  std::string what_;
  Clock::time_point start_;
  Clock::time_point last_line_;
};

}  // namespace kv
