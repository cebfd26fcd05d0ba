#include <fcntl.h>
#include <unistd.h>

#include "harness/cli/verbs.h"
#include "harness/signals.h"

namespace {

// A stream that the caller closed would be the next file's descriptor, and what is printed would stand in rows.csv.
// Output then fails, as it would have; messages go nowhere.
void open_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  kv::handle_signals();
  return kv::run_program(argc, argv);
}
