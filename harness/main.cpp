#include <csignal>

#include "harness/cli/verbs.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // beyond a limit of file sizes a write then fails, as on a full disk
  return kv::run_program(argc, argv);
}
