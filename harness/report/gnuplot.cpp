#include "harness/report/gnuplot.h"

#include <fmt/format.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "harness/report/escape.h"
#include "harness/rows.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr int kPngScale = 16;  // in tenths of the SVG's pixels: sharp on a page, small in a repository
constexpr std::chrono::minutes kDrawingPatience{10};
constexpr const char* kFont = "font 'sans-serif,13'";

using TemporaryFile = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

TemporaryFile temporary_file() {
  TemporaryFile file(std::tmpfile(), &std::fclose);
  if (!file) throw UserError(fmt::format("cannot create a temporary file for gnuplot: {}", std::strerror(errno)));
  return file;
}

// Removes the folder that gnuplot draws into, also when drawing fails.
struct ScratchFolder {
  std::filesystem::path path;
  ScratchFolder() {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    if (error) throw UserError(fmt::format("TMPDIR, the folder for temporary files: {}", error.message()));
    std::string name = (parent / "kvlab-plot-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw UserError(fmt::format("cannot create the folder '{}': {}", name, std::strerror(errno)));
    }
    path = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;  // a destructor must not throw over a folder in /tmp
    std::filesystem::remove_all(path, ignored);
  }
};

// The status that the child ends with. Beyond the patience it is killed: one that hangs must not hang a finished run.
int wait_for(pid_t child, std::chrono::seconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    throw UserError(fmt::format("gnuplot: no answer after {} seconds", patience.count()));
  }
  return status;
}

// Runs gnuplot on a script; its messages if it failed, else empty. Without the user's startup file (-d), which could
// change every plot.
std::string run_gnuplot(const std::string& script, std::chrono::seconds patience) {
  const TemporaryFile input = temporary_file();
  const TemporaryFile output = temporary_file();
  if (std::fwrite(script.data(), 1, script.size(), input.get()) != script.size() || std::fflush(input.get()) != 0) {
    throw UserError(fmt::format("cannot write a temporary file for gnuplot: {}", std::strerror(errno)));
  }
  std::rewind(input.get());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(input.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(output.get()), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(output.get()), STDERR_FILENO);
  std::string program = "gnuplot", defaults = "-d";
  char* const arguments[] = {program.data(), defaults.data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw UserError(fmt::format("cannot start gnuplot: {}; expected gnuplot 5 on the PATH (Debian: gnuplot-nox)",
                                std::strerror(error)));
  }
  const int status = wait_for(child, patience);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  std::rewind(output.get());
  std::string message(4096, '\0');
  message.resize(std::fread(message.data(), 1, message.size(), output.get()));
  return message.empty() ? "no message" : message;
}

// The line that says what is wrong, among the echoed commands.
std::string first_error(const std::string& message) {
  const std::size_t line = message.find(" line ");
  const std::size_t start = line == message.npos ? 0 : message.rfind('\n', line) + 1;
  return printable(message.substr(start, std::min<std::size_t>(message.find('\n', line), start + 200) - start));
}

std::string script_for(const Drawing& drawing) {
  const int width = drawing.width;
  const int height = drawing.height;
  std::string script = "set encoding utf8\n" + drawing.data;
  const auto terminal = [&](const std::string& settings, const std::string& file) {
    script += "reset\nset term " + settings + "\nset output '" + file + "'\n" + drawing.commands + "set output\n";
  };
  terminal(fmt::format("svg size {},{} noenhanced {} background rgb 'white'", width, height, kFont), "plot.svg");
  terminal(fmt::format("pdfcairo size {:.3f}in,{:.3f}in noenhanced {} fontscale 0.9 background rgb 'white'",
                       width / 72.0, height / 72.0, kFont),
           "plot.pdf");
  terminal(
      fmt::format("pngcairo size {},{} noenhanced {} fontscale 1.2 linewidth 1.6 pointscale 1.6 background rgb 'white'",
                  kPngScale * width / 10, kPngScale * height / 10, kFont),
      "plot.png");
  return script;
}

void replace_first(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at != text.npos) text.replace(at, from.size(), to);
}

void sharpen_images(std::string& svg) {
  constexpr std::string_view kTag = "<image ";
  for (std::size_t at = svg.find(kTag); at != svg.npos; at = svg.find(kTag, at + kTag.size())) {
    svg.insert(at + kTag.size(), "style='image-rendering:pixelated' ");
  }
}

// gnuplot opens a group for every element, many of them empty: half of a file of bars.
void remove_empty_groups(std::string& svg) {
  constexpr std::string_view kOpen = "<g fill=\"none\" color=\"black\" stroke=\"currentColor\"";
  constexpr std::string_view kClose = ">\n</g>\n";
  std::string out;
  std::size_t from = 0;
  for (std::size_t at = svg.find(kOpen); at != svg.npos; at = svg.find(kOpen, at + 1)) {
    const std::size_t end = svg.find('>', at);
    if (end == svg.npos || svg.compare(end, kClose.size(), kClose) != 0) continue;
    out.append(svg, from, at - from);
    from = end + kClose.size();
  }
  svg = out.append(svg, from);
}

void remove_date(std::string& pdf) {
  constexpr std::string_view kDate = "/CreationDate (D:";
  std::size_t at = pdf.find(kDate);
  if (at == pdf.npos) return;
  for (at += kDate.size(); at < pdf.size() && pdf[at] >= '0' && pdf[at] <= '9'; ++at) pdf[at] = '0';
}

}  // namespace

void check_gnuplot(std::chrono::seconds patience) {
  const std::string message = run_gnuplot("set term svg\nset term pdfcairo\nset term pngcairo\n", patience);
  if (!message.empty()) {
    throw UserError(fmt::format("gnuplot: {}; expected the terminals svg, pdfcairo and pngcairo (Debian: gnuplot-nox)",
                                first_error(message)));
  }
}

std::string render_plot(const std::filesystem::path& dir, const std::string& name, const std::string& title,
                        const Drawing& drawing) {
  const ScratchFolder scratch;
  const std::string message =
      run_gnuplot("cd " + quote_gnuplot(scratch.path.string()) + "\n" + script_for(drawing), kDrawingPatience);
  if (!message.empty()) throw UserError(fmt::format("plot '{}': gnuplot: {}", name, first_error(message)));
  std::string svg = read_file(scratch.path / "plot.svg");
  replace_first(svg, "<title>Gnuplot</title>", "<title>" + escape_html(title) + "</title>");
  sharpen_images(svg);
  remove_empty_groups(svg);
  std::string pdf = read_file(scratch.path / "plot.pdf");
  remove_date(pdf);
  const std::string png = read_file(scratch.path / "plot.png");
  write_atomically(dir / (name + ".svg"), svg);
  write_atomically(dir / (name + ".pdf"), pdf);
  write_atomically(dir / (name + ".png"), png);
  return svg;
}

}  // namespace kv
