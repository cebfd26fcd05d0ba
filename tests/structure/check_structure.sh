#!/bin/sh
# check_structure.sh ROOT: fails, naming file and line, where an include goes against the direction of the folders or
# closes a cycle of files, or code outside kernels/cuda/ is there or not depending on CUDA.
#   kernels -> kernels; sim -> kernels, sim; policies -> kernels, sim, policies; harness -> kernels, sim, harness
# Inside sim/ a folder includes itself and those below it:
#   io <- model, cache <- policy <- tasks, budget, learned <- source <- replay
# A type has one definition: two of a name in two headers would be one to the linker, which keeps either's functions.
# A header and its source count as one file; a cycle of such files cannot be read from either end.
# Includes of the project are written from the root. CUDA sources see kernels/, CUDA and the standard library only: other
# libraries do not compile under nvcc. The tests may include everything.
# That a build has a backend is known at run time (kernels/backend.h), never to the preprocessor.
set -eu
cd "$1"

find kernels sim policies harness tests -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) |
  LC_ALL=C sort | xargs awk '
  BEGIN {
    allowed["kernels"] = " kernels "
    allowed["sim"] = " kernels sim "
    allowed["policies"] = " kernels sim policies "
    allowed["harness"] = " kernels sim harness "
    below["io"] = " io "
    below["model"] = " io model "
    below["cache"] = " io cache "
    below["policy"] = " io model cache policy "
    below["tasks"] = below["policy"] "tasks "
    below["budget"] = below["policy"] "budget "
    below["learned"] = below["policy"] "learned "
    below["source"] = below["policy"] "tasks budget learned source "
    below["replay"] = below["source"] "replay "
    project = " kernels sim policies harness tests experiments results "
    cuda = "^(cuda|cublas|nvtx3/|cub/|thrust/|cooperative_groups|mma\\.h|nv/|vector_types\\.h|device_|math_constants\\.h)"
  }
  function reject(why) { printf "%s:%d: #include %s: %s\n", FILENAME, FNR, name, why; bad = 1 }
  function stem(path) { sub(/\.[a-z]+$/, "", path); return path }
  # Depth first; a file that is still being visited closes a cycle.
  function visit(file, path,   targets, count, i, t) {
    state[file] = "open"
    path = path " -> " file
    count = split(included[file], targets, " ")
    for (i = 1; i <= count; ++i) {
      t = targets[i]
      if (state[t] == "open") {
        printf "%s: closes a cycle:%s -> %s\n", place[file, t], substr(path, index(path, " -> " t) + 3), t
        bad = 1
      } else if (state[t] == "") visit(t, path)
    }
    state[file] = "done"
  }
  FNR == 1 { continued = 0 }
  # kernels/cpu and kernels/cuda are namespaces of their own; a template has a definition for each of its arguments.
  FILENAME ~ /\.h$/ && FILENAME !~ /^(tests|kernels\/(cpu|cuda))\// && /^(struct|class|union|enum class) [A-Za-z0-9_]+[^<;]*({|$)/ {
    type = $0; sub(/^(struct|class|union|enum class) /, "", type); sub(/[^A-Za-z0-9_].*/, "", type)
    if (type in defined) {
      printf "%s:%d: %s: already defined in %s\n", FILENAME, FNR, type, defined[type]
      bad = 1
    } else defined[type] = FILENAME ":" FNR
  }
  continued || /^[ \t]*#[ \t]*(if|elif)/ {
    continued = /\\$/
    if (FILENAME !~ /^kernels\/cuda\// && tolower($0) ~ /cuda|nvcc|gpu/) {
      printf "%s:%d: %s: only kernels/cuda/ may ask the preprocessor for CUDA\n", FILENAME, FNR, $0
      bad = 1
    }
  }
  FILENAME !~ /^tests\// && /^[ \t]*#[ \t]*include[ \t]*["<]/ {
    match($0, /["<][^">]*/)
    quoted = substr($0, RSTART, 1) == "\""
    name = substr($0, RSTART + 1, RLENGTH - 1)
    folder = FILENAME; sub(/\/.*/, "", folder)
    top = name; sub(/\/.*/, "", top)
    is_cuda = FILENAME ~ /\.cuh?$/
    if (index(project, " " top " ")) {
      if (is_cuda && top != "kernels") reject("a CUDA source may include only kernels/, CUDA and the standard library")
      else if (!index(allowed[folder], " " top " ")) reject(folder "/ may include only" allowed[folder])
      else if (folder == "sim" && top == "sim" && name ~ /^sim\/[a-z]+\// && FILENAME ~ /^sim\/[a-z]+\//) {
        split(FILENAME, from, "/"); split(name, to, "/")
        if (!index(below[from[2]], " " to[2] " ")) reject("sim/" from[2] "/ may include only" below[from[2]] "of sim/")
      }
      from_file = stem(FILENAME); to_file = stem(name)
      if (from_file != to_file && !((from_file, to_file) in place)) {
        included[from_file] = included[from_file] " " to_file
        place[from_file, to_file] = FILENAME ":" FNR ": #include " name
      }
    } else if (quoted) {
      reject("write the path from the root of the repository (libraries in <>)")
    } else if (is_cuda && name !~ cuda && name !~ /^[a-z_]+$/ && name !~ /^(std|math|float|limits|string)[a-z]*\.h$/) {
      reject("a CUDA source may include only kernels/, CUDA and the standard library")
    }
  }
  END {
    for (file in included) if (state[file] == "") visit(file, "")
    exit bad
  }'
