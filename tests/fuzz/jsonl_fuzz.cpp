#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/tasks/jsonl.h"

// Any bytes give usable rows and one-line reasons for the others, or a one-line UserError.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const auto one_line = [](const std::string& text) { return !text.empty() && text.find('\n') == std::string::npos; };
  std::istringstream stream(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const kv::JsonlData read = kv::read_jsonl(stream, "fuzz");
    for (const kv::JsonlProblem& problem : read.malformed) KV_CHECK(problem.line > 0 && one_line(problem.reason));
    for (const kv::JsonlContext& context : read.contexts) {
      KV_CHECK(!context.context.empty() && !context.questions.empty());
      for (const kv::JsonlQuestion& question : context.questions)
        KV_CHECK(!question.answers.empty() && question.max_new_tokens > 0 &&
                 !(question.question.empty() && question.answer_prefix.empty()));
    }
  } catch (const kv::UserError& error) {
    KV_CHECK(one_line(error.what()));
  }
  return 0;
}
