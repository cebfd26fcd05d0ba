#pragma once

#include <vector>

namespace kv::ref {

// In place; an empty vector stays empty.
void softmax(std::vector<double>& values);

}  // namespace kv::ref
