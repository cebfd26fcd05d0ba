# Writes OUTPUT, the definition of kv::build_info() (harness/build_info.h); run at every build, touches the file only when
# its text changes. Without git, or for a source tree that is not the root of a repository, the commit is "unknown".
set(COMMIT unknown)
set(DIRTY false)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE_DIR}
                  OUTPUT_VARIABLE toplevel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH ${SOURCE_DIR} source_dir)
  if(toplevel STREQUAL source_dir)
    execute_process(COMMAND ${GIT} rev-parse --verify HEAD WORKING_DIRECTORY ${SOURCE_DIR}
                    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(COMMIT ${head})
      # What the binary is made of. Results are left out, since a run writes them; specs and data have hashes of their own.
      execute_process(COMMAND ${GIT} status --porcelain -- CMakeLists.txt cmake kernels sim policies harness
                      WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE changes)
      if(changes)
        set(DIRTY true)
      endif()
    endif()
  endif()
endif()
include(${CMAKE_CURRENT_LIST_DIR}/row_sources.cmake)
hash_row_sources(${SOURCE_DIR} SOURCES CPU_SOURCES)
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "harness/build_info.h"

namespace kv {

const BuildInfo& build_info() {
  static constexpr BuildInfo kInfo{
      .commit = "@COMMIT@",
      .dirty = @DIRTY@,
      .sources = "@SOURCES@",
      .cpu_sources = "@CPU_SOURCES@",
      .compiler = R"(@COMPILER@)",
      .flags = R"(@FLAGS@)",
      .build_type = "@BUILD_TYPE@",
      .libraries = "@LIBRARIES@",
  };
  return kInfo;
}

}  // namespace kv
]])
