# kvlab_flags: the libraries, include folders and flags that every C++ source is compiled with, and linted.

# ---- Libraries ------------------------------------------------------------------------------------------------------
set(shared_suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
if(KVLAB_STATIC OR KVLAB_PORTABLE)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
endif()
find_package(fmt 9 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(yaml-cpp REQUIRED)  # for its version only: the target is shared even where a static build is asked for
set(libraries CLI11::CLI11 nlohmann_json::nlohmann_json)
foreach(library yaml-cpp pcre2-8 utf8proc csv lzma)
  find_library(KVLAB_LIB_${library} ${library} REQUIRED)
  list(APPEND libraries ${KVLAB_LIB_${library}})
endforeach()
set(CMAKE_FIND_LIBRARY_SUFFIXES ${shared_suffixes})
# Debian ships no libfmt.a.
list(APPEND libraries $<IF:$<OR:$<BOOL:${KVLAB_STATIC}>,$<BOOL:${KVLAB_PORTABLE}>>,fmt::fmt-header-only,fmt::fmt>)

set(KVLAB_ARCH native CACHE STRING "The -march= of the build")
set(CMAKE_CXX_EXTENSIONS OFF)

# ---- Flags ----------------------------------------------------------------------------------------------------------
# No -ffast-math: it would drop NaN checks and make sums depend on the vector width.
# Designated initialisers name what differs from the default; a warning for every field left alone would defeat them.
# Of OpenMP its `simd` alone; threads are kernels/cpu/parallel.h's.
set(flags -march=${KVLAB_ARCH} -fopenmp-simd -fno-math-errno -Wall -Wextra -Wpedantic
    -Wno-missing-field-initializers)
set(link_flags)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms of g++ 12 inside system headers: the undefined vectors of its AVX-512 intrinsics as uninitialised, fmt's
  # fill character (4 bytes, vectorised) as an overflow, std::string's operator+ as overlapping or endless copies.
  list(APPEND flags -Wshadow=local -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-restrict -Wno-array-bounds)
else()
  list(APPEND flags -Wno-pass-failed)
endif()
if(KVLAB_STATIC)
  list(APPEND link_flags -static)
endif()
if(KVLAB_SANITIZE)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "KVLAB_SANITIZE: the compiler is ${CMAKE_CXX_COMPILER_ID}, expected Clang, which has libFuzzer")
  endif()
  # Of the folder, so that they stand before a target's own, of which some take checks away again.
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${sanitizers}>")
  list(APPEND link_flags -fsanitize=address,undefined)
endif()

add_library(kvlab_flags INTERFACE)
target_compile_features(kvlab_flags INTERFACE cxx_std_20)
target_compile_options(kvlab_flags INTERFACE ${flags})
target_include_directories(kvlab_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_link_options(kvlab_flags INTERFACE ${link_flags})
target_link_libraries(kvlab_flags INTERFACE ${libraries})
