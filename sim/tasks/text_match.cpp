#include "sim/tasks/text_match.h"

#include <algorithm>
#include <map>
#include <string>

namespace kv {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\f\v";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

bool is_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

std::map<std::string, int> squad_words(std::string_view text) {
  std::string plain = lower(text);
  std::erase_if(plain, is_punctuation);
  std::map<std::string, int> counts;
  for (const std::string_view word : words_of(plain))
    if (word != "a" && word != "an" && word != "the") ++counts[std::string(word)];
  return counts;
}

int total(const std::map<std::string, int>& counts) {
  int sum = 0;
  for (const auto& [word, count] : counts) sum += count;
  return sum;
}

// 2PR / (P + R) with P = common / predicted and R = common / right.
double f_measure(size_t common, size_t predicted, size_t right) {
  if (predicted + right == 0) return 1;
  return 2.0 * static_cast<double>(common) / static_cast<double>(predicted + right);
}

}  // namespace

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = text.find_first_not_of(kSpaces); at != text.npos;) {
    const size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

double exact_match(std::string_view prediction, std::string_view answer) {
  return trimmed(prediction) == trimmed(answer) ? 1 : 0;
}

double contains_answer(std::string_view prediction, std::string_view answer) {
  if (answer.empty()) return prediction.empty() ? 1 : 0;
  return lower(prediction).find(lower(answer)) != std::string::npos ? 1 : 0;
}

double token_f1(std::string_view prediction, std::string_view answer) {
  const auto predicted = squad_words(prediction);
  const auto right = squad_words(answer);
  int common = 0;
  for (const auto& [word, count] : predicted) {
    const auto found = right.find(word);
    if (found != right.end()) common += std::min(count, found->second);
  }
  return f_measure(static_cast<size_t>(common), static_cast<size_t>(total(predicted)),
                   static_cast<size_t>(total(right)));
}

double rouge_l(std::string_view prediction, std::string_view answer) {
  const auto predicted = words_of(prediction);
  const auto right = words_of(answer);
  std::vector<size_t> common(right.size() + 1);  // LCS of the predicted words so far and the first j right ones
  for (const std::string_view word : predicted) {
    size_t diagonal = 0;
    for (size_t j = 1; j <= right.size(); ++j) {
      const size_t above = common[j];
      common[j] = word == right[j - 1] ? diagonal + 1 : std::max(above, common[j - 1]);
      diagonal = above;
    }
  }
  return f_measure(common.back(), predicted.size(), right.size());
}

double edit_similarity(std::string_view prediction, std::string_view answer) {
  const size_t longer = std::max(prediction.size(), answer.size());
  if (longer == 0) return 1;
  std::vector<size_t> distance(answer.size() + 1);  // from the predicted bytes so far to the first j of the answer
  for (size_t j = 0; j < distance.size(); ++j) distance[j] = j;
  for (const char c : prediction) {
    size_t diagonal = distance[0]++;
    for (size_t j = 1; j < distance.size(); ++j) {
      const size_t above = distance[j];
      const size_t replaced = diagonal + (c == answer[j - 1] ? 0 : 1);
      distance[j] = std::min({replaced, above + 1, distance[j - 1] + 1});
      diagonal = above;
    }
  }
  return 1 - static_cast<double>(distance.back()) / static_cast<double>(longer);
}

std::string_view first_code_line(std::string_view text) {
  for (size_t at = text.find_first_not_of('\n'); at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.find_first_of("`#") == line.npos && line.find("//") == line.npos) return line;
    at = end + 1;
  }
  return text;
}

}  // namespace kv
