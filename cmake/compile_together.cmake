# compile_together(NAME SIZE OBJECTS SOURCE...): has these sources of one target, of which UNITY_BUILD_MODE is GROUP,
# compiled so many as one, and sets OBJECTS to what comes out, relative to the target's folder of objects. What parses
# and instantiates the same large libraries takes half of the time so. A new file moves the others' places, so what is
# local to one can meet its namesake of another: the name is then redefined, and one of the two needs another name.
function(compile_together name size objects)
  set(made)
  set(count 0)
  foreach(source ${ARGN})
    math(EXPR group "${count} / ${size}")
    math(EXPR count "${count} + 1")
    if(KVLAB_UNITY)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${name}${group})
      list(APPEND made Unity/unity_${name}${group}_cxx.cxx.o)
    else()
      list(APPEND made ${source}.o)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES made)
  set(${objects} ${made} PARENT_SCOPE)
endfunction()
