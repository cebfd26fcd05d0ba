#pragma once

#include <string>

namespace kv {

// Of the machine that this process runs on, as those beside it know it.
std::string host_name();

}  // namespace kv
