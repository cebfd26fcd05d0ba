#include "harness/manifest.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "harness/build_info.h"
#include "harness/files.h"
#include "harness/protocols/protocol.h"
#include "kernels/cpu/parallel.h"
#include "sim/io/hash.h"

namespace kv {
namespace {

using Json = nlohmann::ordered_json;

// The value of the first line "key : value" of a /proc file.
std::string proc_value(const char* file, std::string_view key) {
  std::ifstream stream(file);
  std::string line;
  while (std::getline(stream, line)) {
    const size_t colon = line.find(':');
    if (colon == line.npos || !std::string_view(line).starts_with(key)) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == line.npos ? "" : line.substr(start);
  }
  return "unknown";
}

Json machine(const Facts& accelerator) {
  Json out;
  for (const auto& [name, text] : accelerator) out[name] = text;
  out["cpu"] = proc_value("/proc/cpuinfo", "model name");
  out["cores"] = std::thread::hardware_concurrency();
  out["threads"] = cpu::thread_count();
  const std::string kilobytes = proc_value("/proc/meminfo", "MemTotal");
  const double gibibytes = std::strtod(kilobytes.c_str(), nullptr) / (1024.0 * 1024.0);
  out["memory_gib"] = std::lround(gibibytes);
  return out;
}

Json build() {
  const BuildInfo& info = build_info();
  Json out;
  out["compiler"] = info.compiler;
  out["flags"] = info.flags;
  out["type"] = info.build_type;
  out["libraries"] = info.libraries;
  return out;
}

Json pairs(const std::vector<std::pair<std::string, std::string>>& all) {
  Json out = Json::object();
  for (const auto& [name, hash] : all) out[name] = hash;
  return out;
}

void add_run(Json& out, const ManifestInputs& inputs) {
  const Spec& spec = *inputs.spec;
  out["models_sha256"] = pairs(inputs.hashes.models);
  out["tokenizers_sha256"] = pairs(inputs.hashes.tokenizers);
  out["profiles"] = Json::array();
  for (const InputHashes::Profile& profile : inputs.hashes.profiles) {
    out["profiles"].push_back({{"model", profile.model}, {"file", profile.file}, {"sha256", profile.sha256}});
  }
  out["data_sha256"] = pairs(inputs.hashes.data);
  out["prompts_sha256"] = Json::object();
  for (const auto& [name, hashes] : inputs.prompts) out["prompts_sha256"][name] = sha256_hex(hashes);
  out["seed"] = spec.seed;
  if (spec.batch > 0) {
    out["batch"] = spec.batch;
  } else {
    out["batch"] = {{"auto", inputs.batches}};
  }
  out["device"] = spec.device;
  out["cases"] = inputs.cases;
}

std::string command(const ManifestInputs& inputs) {
  std::string text = fmt::format("kvlab {} {}", inputs.spec->protocol->verb,
                                 std::filesystem::path(inputs.spec->file).filename().string());
  for (const std::string& override_text : inputs.overrides) text += fmt::format(" --set '{}'", override_text);
  return text;
}

void add_code(Json& out, const Spec& spec) {
  out["commit"] = build_info().commit;
  out["changes"] = build_info().dirty ? "uncommitted" : "none";
  out["sources_sha256"] = row_sources(spec.device);
  out["spec_sha256"] = sha256_hex(spec.resolved);
}

std::string today() {
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  const std::time_t time = std::chrono::system_clock::to_time_t(now);
  std::tm utc{};
  gmtime_r(&time, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

void add_circumstances(Json& out, const Facts& accelerator) {
  out["machine"] = machine(accelerator);
  out["build"] = build();
  out["date"] = today();
}

}  // namespace

std::string_view row_sources(const std::string& device) {
  return device == "cpu" ? build_info().cpu_sources : build_info().sources;
}

std::string code_identity() {
  static const std::string identity = [] {
    const BuildInfo& info = build_info();
    if (!info.dirty && info.commit != "unknown") return std::string(info.commit);
    return sha256_hex(read_file("/proc/self/exe"));
  }();
  return identity;
}

std::string machine_identity(bool timed) {
  static const std::string identity = [] {
    const BuildInfo& info = build_info();
    return fmt::format("{}\n{}\n{}\n{}\n{}", info.compiler, info.flags, info.build_type, info.libraries,
                       proc_value("/proc/cpuinfo", "model name"));
  }();
  return timed ? fmt::format("{}\n{} threads", identity, cpu::thread_count()) : identity;
}

std::string origin_json(const Spec& spec, const Facts& accelerator, const std::map<std::string, Facts>& more) {
  Json out;
  for (const auto& [name, facts] : more) out[name] = pairs(facts);
  add_code(out, spec);
  out["device"] = spec.device;
  add_circumstances(out, accelerator);
  return nlohmann::json(out).dump();
}

std::string machine_json(const Facts& accelerator) { return nlohmann::json(machine(accelerator)).dump(); }

std::string manifest_json(const ManifestInputs& inputs) {
  const Spec& spec = *inputs.spec;
  Json out;
  out["experiment"] = spec.name;
  out["command"] = command(inputs);
  out["overrides"] = inputs.overrides;
  add_code(out, spec);
  out["rows_sha256"] = sha256_hex(inputs.rows);
  if (inputs.benchmarks.empty()) {
    add_run(out, inputs);
  } else {
    out["benchmarks"] = Json::parse(inputs.benchmarks);
    out["benchmarks_sha256"] = inputs.benchmarks_sha256;
  }
  add_circumstances(out, inputs.accelerator);
  for (const RankMachine& rank : inputs.ranks) {
    Json of_rank = Json::parse(rank.machine);
    of_rank["node"] = rank.node;
    if (rank.busy_seconds > 0) of_rank["busy_seconds"] = std::lround(rank.busy_seconds * 1000) / 1000.0;
    if (rank.is_lost) of_rank["lost"] = true;
    out["ranks"].push_back(std::move(of_rank));
  }
  out["seconds"] = std::lround(inputs.seconds * 1000) / 1000.0;
  if (!inputs.times.workloads.empty()) out["times"] = to_json(inputs.times);
  return out.dump(2) + "\n";
}

}  // namespace kv
