#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/inputs.h"
#include "harness/cli/verbs.h"
#include "harness/files.h"
#include "harness/model_tokenizer.h"
#include "harness/subject.h"

namespace kv {

void add_tokenize(CLI::App& app, Verbs&) {
  struct TokenizeArguments {
    std::string model, text;
  };
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* verb = app.add_subcommand("tokenize", "Prints a text's token ids as a JSON array");
  add_model_option(*verb, arguments->model);
  verb->add_option("--text", arguments->text, "UTF-8 text file")->required();
  verb->footer("Example:\n  kvlab tokenize --model experiments/models/reference --text README.md");
  verb->callback([arguments] {
    const Tokenizer tokenizer = load_tokenizer(arguments->model);
    fmt::print("[{}]\n", fmt::join(tokenizer.encode(read_file(arguments->text)), ", "));
  });
}

}  // namespace kv
