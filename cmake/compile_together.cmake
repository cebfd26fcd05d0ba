# compile_together(NAME SIZE SOURCE...): has these sources of one target, of which UNITY_BUILD_MODE is GROUP, compiled so
# many as one. What parses and instantiates the same large libraries takes half of the time so. A new file moves the
# others' places, so what is local to one can meet its namesake of another: the compiler says that the name is redefined,
# or an overload is chosen among both, and one of the two needs another name.
function(compile_together name size)
  set(count 0)
  foreach(source ${ARGN})
    math(EXPR group "${count} / ${size}")
    math(EXPR count "${count} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${name}${group})
  endforeach()
endfunction()
