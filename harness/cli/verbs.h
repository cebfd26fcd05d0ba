#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kv {

// Each adds one verb to the program. Its callback does the work, throws UserError for a user's mistake and sets the
// exit code where that is not 0.
struct Verbs {
  int exit_code = 0;
};

void add_run(CLI::App& app, Verbs& verbs);
void add_validate(CLI::App& app, Verbs& verbs);
void add_new(CLI::App& app, Verbs& verbs);
void add_list(CLI::App& app, Verbs& verbs);
void add_describe(CLI::App& app, Verbs& verbs);
void add_plan(CLI::App& app, Verbs& verbs);
void add_train(CLI::App& app, Verbs& verbs);
void add_profile(CLI::App& app, Verbs& verbs);
void add_record(CLI::App& app, Verbs& verbs);
void add_inspect(CLI::App& app, Verbs& verbs);
void add_report(CLI::App& app, Verbs& verbs);
void add_compare(CLI::App& app, Verbs& verbs);
void add_score(CLI::App& app, Verbs& verbs);
void add_tokenize(CLI::App& app, Verbs& verbs);
void add_compress(CLI::App& app, Verbs& verbs);
void add_generate(CLI::App& app, Verbs& verbs);
void add_write(CLI::App& app, Verbs& verbs);

// The whole program: 0 when all is well, 1 when something failed, 2 for a user's mistake (one line on stderr).
int run_program(int argc, const char* const* argv);

}  // namespace kv
