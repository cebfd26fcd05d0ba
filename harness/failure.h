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

// Of what the first of several ranks has said: the program ends without another word, with that exit code.
class SaidElsewhere : public std::exception {
 public:
  explicit SaidElsewhere(int exit_code) : exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

}  // namespace kv
