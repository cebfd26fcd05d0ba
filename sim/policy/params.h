#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

// One option as the user wrote it. `where` is "file:line:column" or empty (command line).
struct GivenParam {
  std::string key;
  std::string text;
  std::string where;
};

// One option as its owner declared it by reading it; what `kvlab describe` prints.
struct DeclaredParam {
  std::string key;
  std::string type;
  std::string fallback;
  std::string help;
  std::string value;  // what get() returned, written as the fallback is: 0.10 is 0.1
};

// The options of a policy, metric or task. get() states key, default and meaning once; finish() refuses keys that
// nobody read. Errors are UserErrors that name the place, the owner, the value and what was expected.
class Params {
 public:
  explicit Params(std::string owner, std::vector<GivenParam> given = {});

  int get(std::string_view key, int fallback, std::string_view help);
  double get(std::string_view key, double fallback, std::string_view help);
  std::string get(std::string_view key, std::string_view fallback, std::initializer_list<std::string_view> choices,
                  std::string_view help);
  // Any text, or nothing (empty).
  std::string text(std::string_view key, std::string_view help);
  // A file that must exist, or nothing (empty).
  std::string file(std::string_view key, std::string_view help);
  bool has(std::string_view key) const;
  // Declares what another Params has declared, for a reader that knows the keys and leaves values to somebody else.
  void declare(const std::vector<DeclaredParam>& others);

  void finish() const;
  const std::vector<DeclaredParam>& declared() const { return declared_; }
  const std::string& owner() const { return owner_; }
  // A UserError about `key`: "<where>: <owner>: <key> = <text>: <message>".
  [[noreturn]] void fail(std::string_view key, std::string_view message) const;

 private:
  const GivenParam* find(std::string_view key) const;
  void declare(std::string_view key, std::string_view type, std::string fallback, std::string_view help,
               std::string value);

  std::string owner_;
  std::vector<GivenParam> given_;
  std::vector<DeclaredParam> declared_;
};

}  // namespace kv
