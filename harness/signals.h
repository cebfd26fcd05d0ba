#pragma once

namespace kv {

// What the system's signals do to this process; main asks for it once.
//   SIGINT, SIGTERM  one line says what stays, and the process ends by the signal (128 + its number, to a shell). One
//                    that was ignored from the start (nohup, a shell's background) stays so.
//   SIGBUS           in a mapped file, which somebody made shorter: one line names the file, exit code 2.
//   SIGPIPE          ignored: a reader that has gone stops no run in its middle. run_program ends by it in the end.
//   SIGXFSZ          ignored: beyond a limit of file sizes a write fails, as on a full disk.
void handle_signals();

}  // namespace kv
