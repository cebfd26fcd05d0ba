#pragma once

#include <exception>
#include <string>

namespace kv {

// How a program ends that an exception ends: a mistake of the caller's (UserError, a file) with exit code 2, whatever
// else with 1.
struct Failure {
  int exit_code = 1;
  std::string message;  // one line
};
Failure failure_of(const std::exception& error);

}  // namespace kv
