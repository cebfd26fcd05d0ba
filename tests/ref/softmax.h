#pragma once

#include <vector>

namespace kv::ref {

// Works in place; an empty vector stays empty.
void softmax(std::vector<double>& values);

}  // namespace kv::ref
