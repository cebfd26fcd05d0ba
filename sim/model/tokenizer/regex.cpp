#define PCRE2_CODE_UNIT_WIDTH 8

#include "sim/model/tokenizer/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <array>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/model/tokenizer/unicode.h"

namespace kv {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
constexpr uint32_t kMatchLimit = 1'000'000;  // for each start; real patterns need about the length of a run of spaces
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackLimit = 4 << 20;

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

void Regex::Free::operator()(pcre2_code* code) const { pcre2_code_free(code); }
void Matcher::Free::operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
void Matcher::Free::operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
void Matcher::Free::operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }

Regex::Regex(std::string_view pattern, PatternKind kind, std::string_view owner) : owner_(owner) {
  if (pattern.size() > kMaxPatternBytes)
    throw UserError(
        fmt::format("{}: pattern of {} bytes, expected at most {}", owner, pattern.size(), kMaxPatternBytes));
  const uint32_t options =
      kind == PatternKind::kLiteral ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(units(pattern), pattern.size(), options, &error, &offset, nullptr));
  if (!code_)
    throw UserError(
        fmt::format("{}: pattern is not a regular expression at byte {}: {}", owner, offset, message_of(error)));
  // Without JIT, or for a pattern that it cannot compile, the interpreter gives the same matches more slowly.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

Matcher::Matcher(const Regex& regex)
    : regex_(&regex),
      data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr)) {
  KV_CHECK(data_ && context_);
  pcre2_set_match_limit(context_.get(), kMatchLimit);
  pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
  if (stack_) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

bool Matcher::search(std::string_view text, size_t from) {
  const int found =
      pcre2_match(regex_->code_.get(), units(text), text.size(), from, PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  // 0 means only that the match data has no room for the groups, which nobody asked for.
  if (found < 0)
    throw UserError(fmt::format("{}: matching from byte {} was given up: {}", regex_->owner_, from, message_of(found)));
  return true;
}

void Matcher::find_all(std::string_view text, const std::function<void(size_t, size_t)>& visit) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t from = 0;
  size_t last_end = kNone;
  while (from <= text.size() && search(text, from)) {
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data_.get());
    const size_t begin = span[0];
    const size_t end = span[1];
    // \K can move the start of a match: a pattern that walks backwards is no way to split text.
    if (begin > end || begin < from)
      throw UserError(fmt::format("{}: pattern matches backwards at byte {}", regex_->owner_, from));
    const bool empty_after_match = begin == end && end == last_end;
    if (!empty_after_match) visit(begin, end);
    last_end = end;
    from = end;
    if (empty_after_match) from = end < text.size() ? end + utf8_length_at(text, end) : end + 1;
  }
}

}  // namespace kv
