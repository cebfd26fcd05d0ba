#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace kv {

enum class PatternKind { kRegex, kLiteral };

// A compiled Perl-compatible pattern over well-formed UTF-8 with Unicode classes. Compiling throws UserError.
class Regex {
 public:
  Regex(std::string_view pattern, PatternKind kind, std::string_view owner);

 private:
  friend class Matcher;
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string owner_;
};

// The memory of one thread's matching with a Regex, which must outlive it.
class Matcher {
 public:
  explicit Matcher(const Regex& regex);

  // Calls visit(begin, end) for every match, in order. As in Oniguruma, an empty match right after another match is
  // none. Backtracking is bounded: a pattern that exceeds it throws UserError instead of hanging.
  void find_all(std::string_view text, const std::function<void(size_t begin, size_t end)>& visit);

 private:
  struct Free {
    void operator()(pcre2_real_match_data_8* data) const;
    void operator()(pcre2_real_match_context_8* context) const;
    void operator()(pcre2_real_jit_stack_8* stack) const;
  };
  bool search(std::string_view text, size_t from);

  const Regex* regex_;
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;
  std::unique_ptr<pcre2_real_match_context_8, Free> context_;
  std::unique_ptr<pcre2_real_jit_stack_8, Free> stack_;
};

}  // namespace kv
