#include "harness/ranks/rank_machines.h"

#include <algorithm>
#include <string>

#include "harness/host_name.h"

namespace kv {

std::vector<RankMachine> gather_machines(Ranks& ranks, const Facts& accelerator) {
  if (!ranks.are_several()) return {};
  const std::vector<std::string> machines = ranks.gather(machine_json(accelerator));
  const std::vector<std::string> hosts = ranks.gather(host_name());
  std::vector<std::string> nodes;
  std::vector<RankMachine> found;
  for (size_t r = 0; r < machines.size(); ++r) {
    auto node = std::find(nodes.begin(), nodes.end(), hosts[r]);
    if (node == nodes.end()) node = nodes.insert(node, hosts[r]);
    found.push_back({.machine = machines[r], .node = static_cast<int>(node - nodes.begin())});
  }
  return found;
}

}  // namespace kv
