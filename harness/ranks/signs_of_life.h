#pragma once

#include <map>
#include <vector>

namespace kv {

// Which other processes have given no sign of life for so long that they must be gone. Counted in looks, which the
// caller makes at even times, and not in time: who stood still itself (a suspended machine) has not looked meanwhile.
class SignsOfLife {
 public:
  // Silent is who was looked for that often since its last sign.
  SignsOfLife(const std::vector<int>& processes, int patience) : patience_(patience) {
    for (const int process : processes) looks_[process] = 0;
  }

  void heard(int process) {
    if (const auto of = looks_.find(process); of != looks_.end()) of->second = 0;
  }
  // It said farewell, or is known to be gone: nobody listens for it.
  void forget(int process) { looks_.erase(process); }
  bool are_all_forgotten() const { return looks_.empty(); }
  // Those that are silent by now, in order.
  std::vector<int> look() {
    std::vector<int> silent;
    for (auto& [process, looks] : looks_) {
      if (++looks >= patience_) silent.push_back(process);
    }
    return silent;
  }

 private:
  std::map<int, int> looks_;  // since the last sign, by process
  int patience_;
};

}  // namespace kv
