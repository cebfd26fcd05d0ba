#include "harness/ranks/finished_pieces.h"

#include <nlohmann/json.hpp>

#include "kernels/check.h"

namespace kv {

using Json = nlohmann::json;

void FinishedPieces::add(std::size_t workload, int first, FinishedPiece piece) {
  pieces_.insert_or_assign({workload, first}, std::move(piece));
}

const FinishedPiece* FinishedPieces::find(std::size_t workload, int first) const {
  const auto found = pieces_.find({workload, first});
  return found == pieces_.end() ? nullptr : &found->second;
}

std::string FinishedPieces::text() const {
  Json all = Json::array();
  for (const auto& [place, piece] : pieces_) all.push_back({place.first, place.second, piece.prompts, piece.keys});
  return all.dump();
}

void FinishedPieces::merge(const std::string& text) {
  const Json all = Json::parse(text, nullptr, false);
  KV_CHECK(all.is_array());
  for (const Json& piece : all) {
    add(piece.at(0).get<std::size_t>(), piece.at(1).get<int>(),
        {.prompts = piece.at(2).get<std::vector<std::string>>(), .keys = piece.at(3).get<std::vector<std::string>>()});
  }
}

}  // namespace kv
