#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace kv {

// Returns one line about a command line that the program could not read: the verb, a misspelt option with the one that
// is near, and whose --help to read.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

// Throws UserError for a first argument that is no verb, with the one that is near; nothing where it is one or an
// option.
void check_verb(const CLI::App& app, int argc, const char* const* argv);

}  // namespace kv
