#include "harness/signals.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <string_view>

#include "sim/io/mapped_file.h"

namespace kv {
namespace {

bool on_terminal = false;  // where progress may have left a line without an end

// One line in one write: handlers may call little more.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    for (const char c : text.substr(0, std::min(text.size(), characters_.size() - 1 - size_))) {
      characters_[size_++] = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
    return *this;
  }
  void write() {
    characters_[size_++] = '\n';
    if (on_terminal) (void)!::write(STDERR_FILENO, "\n", 1);
    (void)!::write(STDERR_FILENO, characters_.data(), size_);
  }

 private:
  std::array<char, 2000> characters_;
  std::size_t size_ = 0;
};

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void on_interruption(int signal) {
  Line line;
  line << "kvlab: interrupted; a run keeps its finished cases, and goes on when it is started again";
  line.write();
  end_by(signal);
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  const char* const file = mapped_file_at(info->si_addr);
  if (file == nullptr) return end_by(signal);  // a mistake of ours
  Line line;
  line << "kvlab: " << file << ": cannot read: the file became shorter while it was read";
  line.write();
  ::_exit(2);
}

void handle_unless_ignored(int signal) {
  struct sigaction action {};
  if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  std::signal(signal, on_interruption);
}

}  // namespace

void handle_signals() {
  on_terminal = ::isatty(STDERR_FILENO) == 1;
  handle_unless_ignored(SIGINT);
  handle_unless_ignored(SIGTERM);
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = on_bus_error;
  ::sigaction(SIGBUS, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace kv
