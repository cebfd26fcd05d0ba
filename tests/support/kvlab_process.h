#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/paths.h"

namespace kv::ref {

// Where a process prints, and the folder that it works in; by default nowhere, and where the test does.
struct ProcessPlace {
  int out = -1, messages = -1;  // descriptors
  std::string folder = ".";
};

// Starts the kvlab binary with one thread.
inline pid_t start_kvlab(const std::vector<std::string>& words, const ProcessPlace& place = {}) {
  const std::string binary = binary_path();
  std::vector<char*> arguments = {const_cast<char*>(binary.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setenv("OMP_NUM_THREADS", "1", 1);
  ::dup2(place.out >= 0 ? place.out : ::open("/dev/null", O_WRONLY), STDOUT_FILENO);
  if (place.messages >= 0) ::dup2(place.messages, STDERR_FILENO);
  if (::chdir(place.folder.c_str()) == 0) ::execv(binary.c_str(), arguments.data());
  ::_exit(127);
}

}  // namespace kv::ref
