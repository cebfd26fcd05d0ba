#include "sim/model/tokenizer/bpe.h"

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <queue>

#include "kernels/error.h"

namespace kv {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

constexpr int32_t kNone = -1;

// One token of the piece, in a doubly linked list over the vector that holds it; id is kNone once merged away.
struct Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;
};

struct Candidate {
  int32_t rank;
  int32_t at;
  int32_t left;
  int32_t right;  // the ids at the time of writing: another pair may stand there by the time of reading
  int32_t result;

  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

}  // namespace

Bpe::Bpe(const TokenizerDefinition& definition) : name_(definition.name), byte_tokens_(definition.byte_tokens) {
  merges_.reserve(definition.merges.size());
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const Merge& merge = definition.merges[rank];
    // A pair named twice keeps its last rank, as in the `tokenizers` library.
    merges_.insert_or_assign(pair_key(merge.left, merge.right), Target{static_cast<int32_t>(rank), merge.result});
  }
  if (definition.whole_words == WholeWords::kLookedUp)
    for (size_t id = 0; id < definition.tokens.size(); ++id)
      if (!definition.tokens[id].empty()) whole_pieces_.emplace(definition.tokens[id], static_cast<int32_t>(id));
}

const Bpe::Target* Bpe::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::append(std::string_view piece, std::vector<int32_t>& ids) const {
  if (!whole_pieces_.empty()) {
    if (const auto found = whole_pieces_.find(std::string(piece)); found != whole_pieces_.end()) {
      ids.push_back(found->second);
      return;
    }
  }

  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char byte : piece) {
    const int32_t id = byte_tokens_[static_cast<unsigned char>(byte)];
    if (id < 0)
      throw UserError(fmt::format("tokenizer {}: byte 0x{:02X} of the text is not in the vocabulary", name_,
                                  static_cast<unsigned char>(byte)));
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = kNone;

  std::vector<Candidate> storage;
  storage.reserve(piece.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{}, std::move(storage));
  const auto offer = [&](int32_t at) {
    if (at == kNone || symbols[at].next == kNone) return;
    const int32_t left = symbols[at].id;
    const int32_t right = symbols[symbols[at].next].id;
    if (const Target* target = find(left, right)) queue.push({target->rank, at, left, right, target->result});
  };
  for (int32_t at = 0; at < static_cast<int32_t>(symbols.size()); ++at) offer(at);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.at];
    if (left.id != best.left || left.next == kNone || symbols[left.next].id != best.right) continue;
    Symbol& right = symbols[left.next];
    left.id = best.result;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) symbols[left.next].previous = best.at;
    offer(left.previous);
    offer(best.at);
  }
  for (int32_t at = 0; at != kNone; at = symbols[at].next) ids.push_back(symbols[at].id);
}

}  // namespace kv
