#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "harness/report/plot.h"

namespace kv {

// UserError where gnuplot cannot be started or does not answer: called before a long run, so that it does not fail at
// its last step.
void check_gnuplot(std::chrono::seconds patience = std::chrono::minutes(1));

// Writes <dir>/<name>.svg, .pdf and .png and returns the SVG. Equal drawings give equal bytes: no date is left in the
// PDF. A failure of gnuplot throws UserError with its first message, and no file of this plot is replaced.
std::string render_plot(const std::filesystem::path& dir, const std::string& name, const std::string& title,
                        const Drawing& drawing);

}  // namespace kv
