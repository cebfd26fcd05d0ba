#include "sim/model/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "sim/model/tokenizer/unicode.h"

namespace kv {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : empty_(tokens.empty()) {
  for (AddedToken& token : tokens)
    by_first_byte_[static_cast<unsigned char>(token.content.front())].push_back(std::move(token));
  for (auto& group : by_first_byte_)
    std::stable_sort(group.begin(), group.end(),
                     [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
}

const AddedToken* AddedTokens::match_at(std::string_view text) const {
  for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text.front())])
    if (text.starts_with(token.content)) return &token;
  return nullptr;
}

std::vector<Stretch> AddedTokens::find(std::string_view text) const {
  if (text.empty()) return {};
  if (empty_) return {{text}};
  std::vector<Stretch> stretches;
  size_t last = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = match_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    if (token->strips_left) begin -= trailing_space(text.substr(last, at - last));
    if (token->strips_right) end += leading_space(text.substr(end));
    if (begin > last) stretches.push_back({text.substr(last, begin - last)});
    stretches.push_back({text.substr(begin, end - begin), token->id});
    last = at = end;
  }
  if (last < text.size()) stretches.push_back({text.substr(last)});
  return stretches;
}

}  // namespace kv
